// What entry points are given: each function checks one argument, reports what is wrong with it and says what to
// return.
#ifndef PACKALLOC_TEST_FAKE_CUDA_ARGUMENTS_H_
#define PACKALLOC_TEST_FAKE_CUDA_ARGUMENTS_H_

#include "test/fake_cuda/driver.h"

namespace fake_cuda {

enum class StreamUse {
  kAnyContext,  // copies, waits, synchronization: another current context is reported, but works
  kOwnContext,  // kernels, event records: fails
};

// 0 and CU_STREAM_LEGACY: the legacy stream of the current context; CU_STREAM_PER_THREAD: the thread's.
CUresult FindStream(Call& call, CUstream handle, StreamUse use, StreamPtr* out);
CUresult FindEvent(Call& call, CUevent handle, EventPtr* out);
CUresult FindPool(Call& call, CUmemoryPool handle, std::shared_ptr<Pool>* out);
CUresult FindContext(Call& call, CUcontext handle, std::shared_ptr<Context>* out);
CUresult CheckDevice(Call& call, CUdevice device);

// nbytes > 0 at a device address (device, managed or pinned memory) that the current context, or `as`, can reach.
CUresult DeviceRange(Call& call, CUdeviceptr address, size_t nbytes, bool writes, Range* out,
                     const Context* as = nullptr);
// nbytes > 0 of host memory: pageable, pinned, registered or managed.
CUresult HostRange(Call& call, const void* pointer, size_t nbytes, bool writes, Range* out);
// The live memory of `kind` that starts at `address`, to be freed.
CUresult FindToFree(Call& call, uintptr_t address, MemoryKind kind, MemoryPtr* out);

}  // namespace fake_cuda

#endif  // PACKALLOC_TEST_FAKE_CUDA_ARGUMENTS_H_
