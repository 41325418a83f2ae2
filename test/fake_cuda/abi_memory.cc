// Device, pinned, registered and managed memory, and what can be asked about a pointer.
#include "test/fake_cuda/abi.h"

using namespace fake_cuda;

namespace {

// Memory is freed with the context of its allocation current; another one works, and is reported.
void CheckOwner(Call& call, const Memory& memory) {
  if (memory.context == call.context) return;
  call.Wrong(FAKE_CUDA_WRONG_CONTEXT, CUDA_SUCCESS,
             Format("0x%zx belongs to a context of device %d, current is another one, of device %d",
                    static_cast<size_t>(memory.begin), memory.context->device, call.context->device));
}

template <typename T>
void Put(void* out, T value) {
  *static_cast<T*>(out) = value;
}

CUresult PointerAttribute(Call& call, void* out, CUpointer_attribute attribute, CUdeviceptr pointer) {
  MemoryPtr memory = call.driver.memories.At(pointer);
  if (memory == nullptr || !memory->live) return CUDA_ERROR_INVALID_VALUE;
  bool device = memory->kind == MemoryKind::kDevice;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      Put(out, memory->context->handle);
      break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      Put<unsigned>(out, device || memory->kind == MemoryKind::kManaged ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST);
      break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      Put(out, pointer);
      break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (device) return CUDA_ERROR_INVALID_VALUE;
      Put(out, reinterpret_cast<void*>(pointer));
      break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      Put<unsigned long long>(out, memory->id);
      break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      Put<unsigned>(out, memory->kind == MemoryKind::kManaged);
      break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      Put<int>(out, memory->context->device);
      break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      Put<CUdeviceptr>(out, memory->begin);
      break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      Put(out, memory->nbytes);
      break;
    case CU_POINTER_ATTRIBUTE_MAPPED:
      Put<unsigned>(out, 1);
      break;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      Put<unsigned>(out, 0);
      break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      Put(out, memory->pool == nullptr ? nullptr : memory->pool->handle);
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

}  // namespace

FAKE_CUDA_ABI_BEGIN

CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  return Enter("cuMemGetInfo_v2", kContext, [&](Call& call) -> CUresult {
    if (free == nullptr || total == nullptr) return CUDA_ERROR_INVALID_VALUE;
    size_t used = call.driver.used[call.context->device];
    *total = call.driver.settings.capacity[call.context->device];
    *free = *total > used ? *total - used : 0;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t nbytes) {
  return Enter("cuMemAlloc_v2", kContext | kUnsafe, [&](Call& call) -> CUresult {
    if (address == nullptr || nbytes == 0) return CUDA_ERROR_INVALID_VALUE;
    int device = call.context->device;
    if (!TakeFromDevice(call.driver, device, nbytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    MemoryPtr memory = call.driver.memories.NewDevice(nbytes);
    if (memory == nullptr) {
      call.driver.used[device] -= nbytes;
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memory->context = call.context;
    *address = memory->begin;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemAllocManaged(CUdeviceptr* address, size_t nbytes, unsigned int flags) {
  return Enter("cuMemAllocManaged", kContext | kUnsafe, [&](Call& call) -> CUresult {
    if (address == nullptr || nbytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) return CUDA_ERROR_INVALID_VALUE;
    int device = call.context->device;
    if (!TakeFromDevice(call.driver, device, nbytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    MemoryPtr memory = call.driver.memories.NewHost(MemoryKind::kManaged, nbytes);
    if (memory == nullptr) {
      call.driver.used[device] -= nbytes;
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memory->context = call.context;
    *address = memory->begin;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemFree_v2(CUdeviceptr address) {
  return Enter("cuMemFree_v2", kContext | kUnsafe, [&](Call& call) -> CUresult {
    if (address == 0) return CUDA_SUCCESS;
    MemoryPtr memory;
    if (CUresult code = FindToFree(call, address, MemoryKind::kDevice, &memory); code != CUDA_SUCCESS) return code;
    CheckOwner(call, *memory);
    FinishBeforeFree(call, memory);
    if (memory->pool != nullptr) {
      ReturnToPool(call.driver, memory, call.name);
      return CUDA_SUCCESS;
    }
    call.driver.used[memory->context->device] -= memory->nbytes;
    call.driver.memories.End(memory, call.name);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemHostAlloc(void** pointer, size_t nbytes, unsigned int flags) {
  return Enter("cuMemHostAlloc", kContext | kUnsafe, [&](Call& call) -> CUresult {
    constexpr unsigned kKnown = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
    if (pointer == nullptr || nbytes == 0 || (flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
    size_t most = call.driver.settings.pinned_capacity;
    if (nbytes > most || call.driver.pinned > most - nbytes) return CUDA_ERROR_OUT_OF_MEMORY;
    MemoryPtr memory = call.driver.memories.NewHost(MemoryKind::kPinned, nbytes);
    if (memory == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    call.driver.pinned += nbytes;
    memory->context = call.context;
    memory->flags = flags;
    *pointer = memory->bytes;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemFreeHost(void* pointer) {
  return Enter("cuMemFreeHost", kContext | kUnsafe, [&](Call& call) -> CUresult {
    MemoryPtr memory;
    CUresult code = FindToFree(call, reinterpret_cast<uintptr_t>(pointer), MemoryKind::kPinned, &memory);
    if (code != CUDA_SUCCESS) return code;
    FinishBeforeFree(call, memory);
    call.driver.pinned -= memory->nbytes;
    call.driver.memories.End(memory, call.name);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* address, void* pointer, unsigned int flags) {
  return Enter("cuMemHostGetDevicePointer_v2", kContext, [&](Call& call) -> CUresult {
    if (address == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    MemoryPtr memory = call.driver.memories.At(reinterpret_cast<uintptr_t>(pointer));
    if (memory == nullptr || !memory->live || !memory->host_accessible()) return CUDA_ERROR_INVALID_VALUE;
    *address = reinterpret_cast<uintptr_t>(pointer);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemHostRegister_v2(void* pointer, size_t nbytes, unsigned int flags) {
  return Enter("cuMemHostRegister_v2", kContext | kUnsafe, [&](Call& call) -> CUresult {
    constexpr unsigned kKnown = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                                CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;
    auto begin = reinterpret_cast<uintptr_t>(pointer);
    if (pointer == nullptr || nbytes == 0 || nbytes > UINTPTR_MAX - begin || (flags & ~kKnown) != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (call.driver.memories.Overlapping(begin, nbytes) != nullptr) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    MemoryPtr memory = call.driver.memories.Register(begin, nbytes);
    memory->context = call.context;
    memory->flags = flags;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemHostUnregister(void* pointer) {
  return Enter("cuMemHostUnregister", kContext | kUnsafe, [&](Call& call) -> CUresult {
    MemoryPtr memory = call.driver.memories.At(reinterpret_cast<uintptr_t>(pointer));
    if (memory == nullptr || memory->kind != MemoryKind::kRegistered || memory->bytes != pointer) {
      return call.Wrong(FAKE_CUDA_WRONG_FREE, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
                        Format("no registered memory starts at %p", pointer));
    }
    FinishBeforeFree(call, memory);
    call.driver.memories.End(memory, call.name);
    return CUDA_SUCCESS;
  });
}

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr pointer) {
  return Enter("cuPointerGetAttribute", 0, [&](Call& call) -> CUresult {
    if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return PointerAttribute(call, data, attribute, pointer);
  });
}

// Unlike cuPointerGetAttribute it succeeds for a pointer that the driver does not know, with zeros.
CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute* attributes, void** data, CUdeviceptr pointer) {
  return Enter("cuPointerGetAttributes", 0, [&](Call& call) -> CUresult {
    if (attributes == nullptr || data == nullptr) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; ++i) {
      if (data[i] == nullptr) return CUDA_ERROR_INVALID_VALUE;
      if (PointerAttribute(call, data[i], attributes[i], pointer) == CUDA_SUCCESS) continue;
      switch (attributes[i]) {
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        case CU_POINTER_ATTRIBUTE_MAPPED:
        case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
          Put<unsigned>(data[i], 0);
          break;
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
          Put<int>(data[i], CU_DEVICE_INVALID);
          break;
        case CU_POINTER_ATTRIBUTE_CONTEXT:
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
          Put<uint64_t>(data[i], 0);
          break;
        default:
          return CUDA_ERROR_INVALID_VALUE;
      }
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* size, CUdeviceptr pointer) {
  return Enter("cuMemGetAddressRange_v2", kContext, [&](Call& call) -> CUresult {
    MemoryPtr memory = call.driver.memories.At(pointer);
    if (memory == nullptr || !memory->live) return CUDA_ERROR_NOT_FOUND;
    if (base != nullptr) *base = memory->begin;
    if (size != nullptr) *size = memory->nbytes;
    return CUDA_SUCCESS;
  });
}

FAKE_CUDA_ABI_END
