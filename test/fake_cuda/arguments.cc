#include "test/fake_cuda/arguments.h"

namespace fake_cuda {
namespace {

size_t Hex(uintptr_t address) { return static_cast<size_t>(address); }

const char* Noun(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kDevice:
      return "device memory";
    case MemoryKind::kPinned:
      return "pinned memory";
    case MemoryKind::kRegistered:
      return "registered memory";
    case MemoryKind::kManaged:
      return "managed memory";
  }
  return "memory";
}

// Live, and long enough.
CUresult CheckMemory(Call& call, const Memory& memory, uintptr_t address, size_t nbytes) {
  if (!memory.live) {
    return call.Wrong(FAKE_CUDA_USE_AFTER_FREE, CUDA_ERROR_INVALID_VALUE,
                      Format("0x%zx lies in %zu bytes of %s at 0x%zx that %s freed", Hex(address), memory.nbytes,
                             Noun(memory.kind), Hex(memory.begin), memory.freed_by));
  }
  if (nbytes > memory.end() - address) {
    return call.Wrong(
        FAKE_CUDA_OUT_OF_BOUNDS, CUDA_ERROR_INVALID_VALUE,
        Format("%zu bytes at 0x%zx end %zu bytes behind the %zu bytes of %s at 0x%zx", nbytes, Hex(address),
               nbytes - (memory.end() - address), memory.nbytes, Noun(memory.kind), Hex(memory.begin)));
  }
  return CUDA_SUCCESS;
}

template <typename Handle, typename T>
CUresult FindHandle(Call& call, const HandleTable<Handle, T>& table, Handle handle, const char* what, CUresult code,
                    std::shared_ptr<T>* out) {
  *out = table.Find(handle);
  if (*out != nullptr) return CUDA_SUCCESS;
  if (table.WasRemoved(handle)) {
    return call.Wrong(FAKE_CUDA_USE_AFTER_FREE, code, Format("%s %p was destroyed", what, static_cast<void*>(handle)));
  }
  return call.Wrong(FAKE_CUDA_BAD_HANDLE, code, Format("%p is no %s", static_cast<void*>(handle), what));
}

StreamPtr NewSpecialStream(Driver& driver, const std::shared_ptr<Context>& context, CUstream handle, bool legacy) {
  auto stream = std::make_shared<Stream>();
  stream->handle = handle;
  stream->id = ++driver.next_stream;
  stream->context = context;
  stream->legacy = legacy;
  return stream;
}

}  // namespace

CUresult FindStream(Call& call, CUstream handle, StreamUse use, StreamPtr* out) {
  Driver& driver = call.driver;
  if (handle == nullptr || handle == CU_STREAM_LEGACY) {
    if (call.context->legacy == nullptr) {
      call.context->legacy = NewSpecialStream(driver, call.context, CU_STREAM_LEGACY, true);
    }
    *out = call.context->legacy;
    return CUDA_SUCCESS;
  }
  if (handle == CU_STREAM_PER_THREAD) {
    StreamPtr& stream = call.context->per_thread[driver.ThisThread().id];
    if (stream == nullptr) stream = NewSpecialStream(driver, call.context, CU_STREAM_PER_THREAD, false);
    *out = stream;
    return CUDA_SUCCESS;
  }
  CUresult code = FindHandle(call, driver.streams, handle, "stream", CUDA_ERROR_INVALID_HANDLE, out);
  if (code != CUDA_SUCCESS) return code;
  if ((*out)->context == call.context) return CUDA_SUCCESS;
  code = call.Wrong(FAKE_CUDA_WRONG_CONTEXT, CUDA_ERROR_INVALID_HANDLE,
                    Format("stream %p belongs to context %p of device %d, current is context %p of device %d",
                           static_cast<void*>(handle), static_cast<void*>((*out)->context->handle),
                           (*out)->context->device, static_cast<void*>(call.context->handle), call.context->device));
  return use == StreamUse::kAnyContext ? CUDA_SUCCESS : code;
}

CUresult FindEvent(Call& call, CUevent handle, EventPtr* out) {
  return FindHandle(call, call.driver.events, handle, "event", CUDA_ERROR_INVALID_HANDLE, out);
}

CUresult FindPool(Call& call, CUmemoryPool handle, std::shared_ptr<Pool>* out) {
  return FindHandle(call, call.driver.pools, handle, "memory pool", CUDA_ERROR_INVALID_VALUE, out);
}

CUresult FindContext(Call& call, CUcontext handle, std::shared_ptr<Context>* out) {
  return FindHandle(call, call.driver.contexts, handle, "context", CUDA_ERROR_INVALID_CONTEXT, out);
}

CUresult CheckDevice(Call& call, CUdevice device) {
  return device >= 0 && device < call.driver.settings.devices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult DeviceRange(Call& call, CUdeviceptr address, size_t nbytes, bool writes, Range* out, const Context* as) {
  Driver& driver = call.driver;
  MemoryPtr memory = driver.memories.At(address);
  if (memory == nullptr) {
    MemoryPtr before = driver.memories.Before(address);
    if (before != nullptr && driver.memories.IsDeviceAddress(address) &&
        driver.memories.IsDeviceAddress(before->begin)) {
      return call.Wrong(FAKE_CUDA_OUT_OF_BOUNDS, CUDA_ERROR_INVALID_VALUE,
                        Format("0x%zx is %zu bytes behind the end of %zu bytes at 0x%zx", Hex(address),
                               Hex(address - before->end()), before->nbytes, Hex(before->begin)));
    }
    return call.Wrong(FAKE_CUDA_FOREIGN_POINTER, CUDA_ERROR_INVALID_VALUE,
                      Format("0x%zx is no device address", Hex(address)));
  }
  if (CUresult code = CheckMemory(call, *memory, address, nbytes); code != CUDA_SUCCESS) return code;
  if (as == nullptr) as = call.context.get();
  const Context* owner = memory->context.get();
  bool everywhere = memory->kind != MemoryKind::kDevice;
  bool pool_of_device = memory->pool != nullptr && owner->device == as->device;
  if (!everywhere && owner != as && !pool_of_device && as->peers.count(owner) == 0) {
    fake_cuda_kind kind = owner->device == as->device ? FAKE_CUDA_WRONG_CONTEXT : FAKE_CUDA_FOREIGN_DEVICE;
    return call.Wrong(
        kind, CUDA_ERROR_INVALID_VALUE,
        Format("0x%zx belongs to context %p of device %d; context %p of device %d cannot reach it", Hex(address),
               static_cast<void*>(owner->handle), owner->device, static_cast<void*>(as->handle), as->device));
  }
  *out = Range{static_cast<uintptr_t>(address), nbytes, writes, std::move(memory)};
  return CUDA_SUCCESS;
}

CUresult HostRange(Call& call, const void* pointer, size_t nbytes, bool writes, Range* out) {
  Driver& driver = call.driver;
  auto address = reinterpret_cast<uintptr_t>(pointer);
  if (pointer == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (driver.memories.IsDeviceAddress(address)) {
    return call.Wrong(FAKE_CUDA_FOREIGN_POINTER, CUDA_ERROR_INVALID_VALUE,
                      Format("0x%zx is a device address, and given as host memory", Hex(address)));
  }
  MemoryPtr memory = driver.memories.At(address);
  if (memory != nullptr) {
    if (CUresult code = CheckMemory(call, *memory, address, nbytes); code != CUDA_SUCCESS) return code;
  } else if (MemoryPtr reached = driver.memories.Overlapping(address, nbytes)) {
    return call.Wrong(FAKE_CUDA_OUT_OF_BOUNDS, CUDA_ERROR_INVALID_VALUE,
                      Format("%zu bytes at 0x%zx begin outside and end inside of %s at 0x%zx", nbytes, Hex(address),
                             Noun(reached->kind), Hex(reached->begin)));
  }
  *out = Range{address, nbytes, writes, std::move(memory)};
  return CUDA_SUCCESS;
}

CUresult FindToFree(Call& call, uintptr_t address, MemoryKind kind, MemoryPtr* out) {
  Driver& driver = call.driver;
  MemoryPtr memory = driver.memories.At(address);
  bool fits = memory != nullptr &&
              (memory->kind == kind || (kind == MemoryKind::kDevice && memory->kind == MemoryKind::kManaged));
  if (memory == nullptr) {
    return call.Wrong(FAKE_CUDA_WRONG_FREE, CUDA_ERROR_INVALID_VALUE,
                      Format("0x%zx is not the driver's memory", Hex(address)));
  }
  if (!memory->live) {
    return call.Wrong(FAKE_CUDA_DOUBLE_FREE, CUDA_ERROR_INVALID_VALUE,
                      Format("0x%zx was freed by %s", Hex(address), memory->freed_by));
  }
  if (!fits || memory->begin != address) {
    return call.Wrong(FAKE_CUDA_WRONG_FREE, CUDA_ERROR_INVALID_VALUE,
                      Format("0x%zx is %zu bytes into %zu bytes of %s", Hex(address), Hex(address - memory->begin),
                             memory->nbytes, Noun(memory->kind)));
  }
  *out = std::move(memory);
  return CUDA_SUCCESS;
}

}  // namespace fake_cuda
