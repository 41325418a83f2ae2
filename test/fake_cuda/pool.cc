#include "test/fake_cuda/pool.h"

#include <algorithm>

namespace fake_cuda {

bool TakeFromDevice(Driver& driver, int device, size_t nbytes) {
  if (nbytes > driver.settings.capacity[device] || driver.used[device] > driver.settings.capacity[device] - nbytes) {
    return false;
  }
  driver.used[device] += nbytes;
  return true;
}

bool TakeFromPool(Driver& driver, Pool& pool, size_t nbytes) {
  size_t idle = pool.reserved - pool.used;
  size_t more = nbytes > idle ? nbytes - idle : 0;
  if (!TakeFromDevice(driver, pool.device, more)) return false;
  pool.reserved += more;
  pool.used += nbytes;
  pool.reserved_peak = std::max(pool.reserved_peak, pool.reserved);
  pool.used_peak = std::max(pool.used_peak, pool.used);
  return true;
}

void ReturnToPool(Driver& driver, const MemoryPtr& memory, const char* freed_by) {
  driver.memories.End(memory, freed_by);
  memory->pool->used -= memory->nbytes;
  if (memory->pool->destroyed) TrimPool(driver, *memory->pool, 0);
}

void TrimPool(Driver& driver, Pool& pool, size_t keep) {
  size_t left = std::max(pool.used, std::min(pool.reserved, keep));
  driver.used[pool.device] -= pool.reserved - left;
  pool.reserved = left;
}

void TrimPoolsToThreshold(Driver& driver) {
  for (const auto& [handle, pool] : driver.pools.all()) TrimPool(driver, *pool, pool->release_threshold);
}

std::shared_ptr<Pool> DefaultPool(Driver& driver, int device) {
  std::shared_ptr<Pool>& pool = driver.default_pool[device];
  if (pool == nullptr) {
    pool = std::make_shared<Pool>();
    pool->device = device;
    pool->is_default = true;
    pool->handle = driver.pools.Add(pool, driver.NextHandle());
  }
  return pool;
}

}  // namespace fake_cuda
