// Stream-ordered memory and its pools.
#include <algorithm>

#include "test/fake_cuda/abi.h"

using namespace fake_cuda;

namespace {

// Frees that are ordered before the next work of the stream give their bytes back to it.
void RunFreesBefore(Call& call, const StreamPtr& stream) {
  if (stream->last == nullptr) return;
  std::vector<OpPtr> frees;
  for (const OpPtr& op : call.driver.unfinished) {
    if (op->kind == WorkKind::kFree && op->OrderedBefore(*stream->last)) frees.push_back(op);
  }
  for (const OpPtr& op : frees) Demand(call.driver, call.lock, op);
}

CUresult Allocate(Call& call, CUdeviceptr* address, size_t nbytes, const std::shared_ptr<Pool>& pool, CUstream handle) {
  StreamPtr stream;
  CUresult code = FindStream(call, handle, StreamUse::kAnyContext, &stream);
  if (code != CUDA_SUCCESS) return code;
  if (stream->capture == nullptr && !TakeFromPool(call.driver, *pool, nbytes)) {
    RunFreesBefore(call, stream);
    if (!TakeFromPool(call.driver, *pool, nbytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  MemoryPtr memory = call.driver.memories.NewDevice(nbytes);
  if (memory == nullptr) {
    pool->used -= nbytes;
    TrimPool(call.driver, *pool, pool->reserved - nbytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  memory->context = call.context;
  memory->pool = pool;
  Work work;
  work.call = call.name;
  work.kind = WorkKind::kAlloc;
  work.ranges = {Range{memory->begin, nbytes, true, memory}};
  if (code = Enqueue(call, stream, std::move(work)); code != CUDA_SUCCESS) {
    call.driver.memories.End(memory, call.name);
    if (stream->capture == nullptr) pool->used -= nbytes;
    return code;
  }
  *address = memory->begin;
  return CUDA_SUCCESS;
}

CUresult Attribute(Pool* pool, CUmemPool_attribute attribute, void* value, bool set) {
  uint64_t* number = static_cast<uint64_t*>(value);
  switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      (set ? pool->release_threshold : *number) = set ? *number : pool->release_threshold;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      if (!set) *static_cast<int*>(value) = 1;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      if (set) return CUDA_ERROR_INVALID_VALUE;
      *number = pool->reserved;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      if (set) return CUDA_ERROR_INVALID_VALUE;
      *number = pool->used;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      if (set && *number != 0) return CUDA_ERROR_INVALID_VALUE;
      if (set) pool->reserved_peak = pool->reserved;
      *number = pool->reserved_peak;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      if (set && *number != 0) return CUDA_ERROR_INVALID_VALUE;
      if (set) pool->used_peak = pool->used;
      *number = pool->used_peak;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace

FAKE_CUDA_ABI_BEGIN

CUresult cuMemAllocAsync(CUdeviceptr* address, size_t nbytes, CUstream stream) {
  return Enter("cuMemAllocAsync", kContext, [&](Call& call) -> CUresult {
    if (address == nullptr || nbytes == 0) return CUDA_ERROR_INVALID_VALUE;
    return Allocate(call, address, nbytes, DefaultPool(call.driver, call.context->device), stream);
  });
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t nbytes, CUmemoryPool handle, CUstream stream) {
  return Enter("cuMemAllocFromPoolAsync", kContext, [&](Call& call) -> CUresult {
    if (address == nullptr || nbytes == 0) return CUDA_ERROR_INVALID_VALUE;
    std::shared_ptr<Pool> pool;
    if (CUresult code = FindPool(call, handle, &pool); code != CUDA_SUCCESS) return code;
    return Allocate(call, address, nbytes, pool, stream);
  });
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
  return Enter("cuMemFreeAsync", kContext, [&](Call& call) -> CUresult {
    if (address == 0) return CUDA_SUCCESS;
    MemoryPtr memory;
    CUresult code = FindToFree(call, address, MemoryKind::kDevice, &memory);
    if (code != CUDA_SUCCESS) return code;
    if (memory->pool == nullptr) {
      return call.Wrong(FAKE_CUDA_WRONG_FREE, CUDA_ERROR_INVALID_VALUE,
                        Format("0x%zx does not come from a pool", static_cast<size_t>(address)));
    }
    StreamPtr stream;
    if (code = FindStream(call, handle, StreamUse::kAnyContext, &stream); code != CUDA_SUCCESS) return code;
    Work work;
    work.call = call.name;
    work.kind = WorkKind::kFree;
    work.ranges = {Range{memory->begin, memory->nbytes, true, memory}};
    // Not before the stream gets there do the bytes go; but what is enqueued from now on comes too late.
    bool captured = stream->capture != nullptr;
    if (!captured) {
      memory->live = false;
      memory->freed_by = call.name;
    }
    return Enqueue(call, stream, std::move(work));
  });
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* handle, CUdevice device) {
  return Enter("cuDeviceGetDefaultMemPool", 0, [&](Call& call) -> CUresult {
    if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult code = CheckDevice(call, device); code != CUDA_SUCCESS) return code;
    *handle = DefaultPool(call.driver, device)->handle;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemPoolCreate(CUmemoryPool* handle, const CUmemPoolProps* properties) {
  return Enter("cuMemPoolCreate", 0, [&](Call& call) -> CUresult {
    if (handle == nullptr || properties == nullptr || properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (CUresult code = CheckDevice(call, properties->location.id); code != CUDA_SUCCESS) return code;
    auto pool = std::make_shared<Pool>();
    pool->device = properties->location.id;
    *handle = pool->handle = call.driver.pools.Add(pool, call.driver.NextHandle());
    return CUDA_SUCCESS;
  });
}

// What was allocated from it stays until it is freed.
CUresult cuMemPoolDestroy(CUmemoryPool handle) {
  return Enter("cuMemPoolDestroy", 0, [&](Call& call) -> CUresult {
    if (call.driver.pools.WasRemoved(handle)) {
      return call.Wrong(FAKE_CUDA_DOUBLE_FREE, CUDA_ERROR_INVALID_VALUE,
                        Format("memory pool %p was destroyed", static_cast<void*>(handle)));
    }
    std::shared_ptr<Pool> pool;
    if (CUresult code = FindPool(call, handle, &pool); code != CUDA_SUCCESS) return code;
    if (pool->is_default) {
      return call.Wrong(FAKE_CUDA_WRONG_FREE, CUDA_ERROR_INVALID_VALUE, "a default pool cannot be destroyed");
    }
    pool->destroyed = true;
    TrimPool(call.driver, *pool, 0);
    call.driver.pools.Remove(handle);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  return Enter("cuMemPoolSetAttribute", 0, [&](Call& call) -> CUresult {
    std::shared_ptr<Pool> pool;
    if (CUresult code = FindPool(call, handle, &pool); code != CUDA_SUCCESS) return code;
    return value == nullptr ? CUDA_ERROR_INVALID_VALUE : Attribute(pool.get(), attribute, value, true);
  });
}

CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  return Enter("cuMemPoolGetAttribute", 0, [&](Call& call) -> CUresult {
    std::shared_ptr<Pool> pool;
    if (CUresult code = FindPool(call, handle, &pool); code != CUDA_SUCCESS) return code;
    return value == nullptr ? CUDA_ERROR_INVALID_VALUE : Attribute(pool.get(), attribute, value, false);
  });
}

CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep) {
  return Enter("cuMemPoolTrimTo", 0, [&](Call& call) -> CUresult {
    std::shared_ptr<Pool> pool;
    if (CUresult code = FindPool(call, handle, &pool); code != CUDA_SUCCESS) return code;
    TrimPool(call.driver, *pool, keep);
    return CUDA_SUCCESS;
  });
}

FAKE_CUDA_ABI_END
