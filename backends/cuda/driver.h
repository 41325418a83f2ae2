// The CUDA driver as a table of functions, loaded once, when first asked for. Never unloaded: buffers outlive main.
#ifndef PACKALLOC_BACKENDS_CUDA_DRIVER_H_
#define PACKALLOC_BACKENDS_CUDA_DRIVER_H_

#include <cuda.h>
#include <sys/types.h>

#include <atomic>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace packalloc::internal {

// Names with the suffix of the ABI that is meant: cuda.h maps the bare ones to whatever is newest in it.
// clang-format off
#define PACKALLOC_CUDA_REQUIRED(X)                                                                                     \
  X(cuInit) X(cuDriverGetVersion) X(cuGetErrorName) X(cuGetErrorString)                                                \
  X(cuDeviceGetCount) X(cuDeviceGet) X(cuDeviceGetName) X(cuDeviceGetAttribute) X(cuDeviceTotalMem_v2)                 \
  X(cuDeviceCanAccessPeer) X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease_v2)                                 \
  X(cuCtxPushCurrent_v2) X(cuCtxPopCurrent_v2) X(cuCtxGetCurrent) X(cuCtxEnablePeerAccess)                             \
  X(cuMemGetInfo_v2) X(cuMemAlloc_v2) X(cuMemFree_v2) X(cuMemAllocManaged) X(cuMemHostAlloc) X(cuMemFreeHost)          \
  X(cuMemHostRegister_v2) X(cuMemHostUnregister) X(cuPointerGetAttribute)                                              \
  X(cuMemcpyHtoDAsync_v2) X(cuMemcpyDtoHAsync_v2) X(cuMemcpyDtoDAsync_v2) X(cuMemcpyPeerAsync) X(cuMemsetD8Async)      \
  X(cuStreamCreate) X(cuStreamDestroy_v2) X(cuStreamSynchronize) X(cuStreamWaitEvent) X(cuStreamIsCapturing)           \
  X(cuEventCreate) X(cuEventRecord) X(cuEventQuery) X(cuEventSynchronize) X(cuEventDestroy_v2)
#define PACKALLOC_CUDA_OPTIONAL(X)                                                                                     \
  X(cuMemAllocAsync) X(cuMemFreeAsync) X(cuDeviceGetDefaultMemPool) X(cuMemPoolSetAttribute) X(cuMemPoolTrimTo)        \
  X(cuCtxGetDevice)
// clang-format on

class CudaDriver {
 public:
  CudaDriver() = default;
  CudaDriver(const CudaDriver&) = delete;
  CudaDriver& operator=(const CudaDriver&) = delete;

  // The process's driver, or UNAVAILABLE with the reason; the first answer is kept. The driver lives for ever.
  // FAILED_PRECONDITION in a child forked after the driver was started.
  static absl::StatusOr<const CudaDriver*> Get();

  // Calls one of the functions below, unless the driver has shut down: then the answer is CUDA_ERROR_DEINITIALIZED
  // without a call, from the first time on that the driver gave it.
  template <typename... Parameters, typename... Arguments>
  CUresult Call(CUresult (*function)(Parameters...), Arguments... arguments) const {
    if (gone()) return CUDA_ERROR_DEINITIALIZED;
    const CUresult result = function(arguments...);
    if (result == CUDA_ERROR_DEINITIALIZED) gone_.store(true, std::memory_order_relaxed);
    return result;
  }

  // For what releases a handle, which has no caller who could try again: a failure is tried once more.
  template <typename... Parameters, typename... Arguments>
  CUresult Release(CUresult (*function)(Parameters...), Arguments... arguments) const {
    const CUresult result = Call(function, arguments...);
    return result == CUDA_SUCCESS ? result : Call(function, arguments...);
  }

  bool gone() const { return gone_.load(std::memory_order_relaxed); }
  // Whether this process is a fork of the one that started the driver.
  bool forked() const;
  int version() const { return version_; }  // as the driver tells it: 13020 is CUDA 13.2

#define PACKALLOC_CUDA_MEMBER(name) decltype(&::name) name = nullptr;
  PACKALLOC_CUDA_REQUIRED(PACKALLOC_CUDA_MEMBER)
  PACKALLOC_CUDA_OPTIONAL(PACKALLOC_CUDA_MEMBER)
#undef PACKALLOC_CUDA_MEMBER

 private:
  static absl::StatusOr<const CudaDriver*> Start();
  absl::Status Load();

  mutable std::atomic<bool> gone_{false};
  pid_t pid_ = 0;
  int version_ = 0;
};

}  // namespace packalloc::internal

#endif  // PACKALLOC_BACKENDS_CUDA_DRIVER_H_
