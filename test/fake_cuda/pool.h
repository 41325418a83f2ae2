// Pools of stream-ordered memory, and the count of a device's bytes in use.
#ifndef PACKALLOC_TEST_FAKE_CUDA_POOL_H_
#define PACKALLOC_TEST_FAKE_CUDA_POOL_H_

#include "test/fake_cuda/driver.h"

namespace fake_cuda {

// Takes bytes from a device; false where it has not that many.
bool TakeFromDevice(Driver& driver, int device, size_t nbytes);
// The same through a pool, which keeps what was returned to it.
bool TakeFromPool(Driver& driver, Pool& pool, size_t nbytes);
// Ends stream-ordered memory whose free was executed.
void ReturnToPool(Driver& driver, const MemoryPtr& memory, const char* freed_by);
void TrimPool(Driver& driver, Pool& pool, size_t keep);
// What a synchronization does: pools give back what they hold above their release threshold.
void TrimPoolsToThreshold(Driver& driver);
std::shared_ptr<Pool> DefaultPool(Driver& driver, int device);

}  // namespace fake_cuda

#endif  // PACKALLOC_TEST_FAKE_CUDA_POOL_H_
