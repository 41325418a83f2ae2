// Copies and fills.
#include "test/fake_cuda/abi.h"

using namespace fake_cuda;

namespace {

enum class Waits {
  kNo,      // the call returns when the work is enqueued
  kSource,  // when the source was read
  kAll,     // when the work is done
};

CUresult EnqueueAndWait(Call& call, CUstream handle, Work work, Waits waits) {
  StreamPtr stream;
  if (CUresult code = FindStream(call, handle, StreamUse::kAnyContext, &stream); code != CUDA_SUCCESS) return code;
  if (waits != Waits::kNo && stream->capture != nullptr) {
    return Invalidate(call, stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "waits for a stream that captures");
  }
  work.call = call.name;
  bool pageable = false, fills_pageable = false;
  if (work.kind == WorkKind::kCopy) {
    fills_pageable = work.ranges[0].memory == nullptr;
    pageable = fills_pageable || work.ranges[1].memory == nullptr;
  }
  work.pageable_now =
      pageable && (waits == Waits::kSource || call.driver.settings.pageable == FAKE_CUDA_PAGEABLE_EARLY);
  bool now = waits == Waits::kAll || (work.pageable_now && fills_pageable);
  OpPtr op;
  if (CUresult code = Enqueue(call, stream, std::move(work), &op); code != CUDA_SUCCESS) return code;
  // Of pinned memory a blocking copy has nothing left to do; of pageable memory the last bytes may still be on their
  // way.
  if (waits == Waits::kSource && !pageable) now = true;
  if (now) Finish(call.driver, call.lock, op);
  return CUDA_SUCCESS;
}

CUresult Copy(Call& call, CUstream stream, Range dest, Range src, Waits waits) {
  Work work;
  work.kind = WorkKind::kCopy;
  work.ranges = {std::move(dest), std::move(src)};
  return EnqueueAndWait(call, stream, std::move(work), waits);
}

CUresult HostToDevice(const char* name, unsigned needs, CUdeviceptr dest, const void* src, size_t nbytes,
                      CUstream stream, Waits waits) {
  return Enter(name, needs | kContext, [&](Call& call) -> CUresult {
    if (nbytes == 0) return CUDA_SUCCESS;
    Range to, from;
    if (CUresult code = DeviceRange(call, dest, nbytes, true, &to); code != CUDA_SUCCESS) return code;
    if (CUresult code = HostRange(call, src, nbytes, false, &from); code != CUDA_SUCCESS) return code;
    return Copy(call, stream, std::move(to), std::move(from), waits);
  });
}

CUresult DeviceToHost(const char* name, unsigned needs, void* dest, CUdeviceptr src, size_t nbytes, CUstream stream,
                      Waits waits) {
  return Enter(name, needs | kContext, [&](Call& call) -> CUresult {
    if (nbytes == 0) return CUDA_SUCCESS;
    Range to, from;
    if (CUresult code = HostRange(call, dest, nbytes, true, &to); code != CUDA_SUCCESS) return code;
    if (CUresult code = DeviceRange(call, src, nbytes, false, &from); code != CUDA_SUCCESS) return code;
    return Copy(call, stream, std::move(to), std::move(from), waits);
  });
}

// The result of copying overlapping memory is undefined.
CUresult CheckOverlap(Call& call, CUdeviceptr dest, CUdeviceptr src, size_t nbytes) {
  if (dest >= src + nbytes || src >= dest + nbytes) return CUDA_SUCCESS;
  return call.Wrong(
      FAKE_CUDA_MISUSE, CUDA_ERROR_INVALID_VALUE,
      Format("0x%zx and 0x%zx (%zu bytes) overlap", static_cast<size_t>(dest), static_cast<size_t>(src), nbytes));
}

CUresult DeviceToDevice(const char* name, unsigned needs, CUdeviceptr dest, CUdeviceptr src, size_t nbytes,
                        CUstream stream) {
  return Enter(name, needs | kContext, [&](Call& call) -> CUresult {
    if (nbytes == 0) return CUDA_SUCCESS;
    Range to, from;
    if (CUresult code = DeviceRange(call, dest, nbytes, true, &to); code != CUDA_SUCCESS) return code;
    if (CUresult code = DeviceRange(call, src, nbytes, false, &from); code != CUDA_SUCCESS) return code;
    if (CUresult code = CheckOverlap(call, dest, src, nbytes); code != CUDA_SUCCESS) return code;
    return Copy(call, stream, std::move(to), std::move(from), Waits::kNo);
  });
}

CUresult Fill(const char* name, unsigned needs, CUdeviceptr dest, uint32_t value, unsigned width, size_t count,
              CUstream stream) {
  return Enter(name, needs | kContext, [&](Call& call) -> CUresult {
    if (count == 0) return CUDA_SUCCESS;
    if (count > SIZE_MAX / width || dest % width != 0) return CUDA_ERROR_INVALID_VALUE;
    Work work;
    work.kind = WorkKind::kFill;
    work.ranges.resize(1);
    CUresult code = DeviceRange(call, dest, count * width, true, &work.ranges[0]);
    if (code != CUDA_SUCCESS) return code;
    work.value = value;
    work.width = width;
    return EnqueueAndWait(call, stream, std::move(work), Waits::kNo);
  });
}

}  // namespace

FAKE_CUDA_ABI_BEGIN

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dest, const void* src, size_t nbytes, CUstream stream) {
  return HostToDevice("cuMemcpyHtoDAsync_v2", 0, dest, src, nbytes, stream, Waits::kNo);
}

CUresult cuMemcpyDtoHAsync_v2(void* dest, CUdeviceptr src, size_t nbytes, CUstream stream) {
  return DeviceToHost("cuMemcpyDtoHAsync_v2", 0, dest, src, nbytes, stream, Waits::kNo);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dest, CUdeviceptr src, size_t nbytes, CUstream stream) {
  return DeviceToDevice("cuMemcpyDtoDAsync_v2", 0, dest, src, nbytes, stream);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr dest, const void* src, size_t nbytes) {
  return HostToDevice("cuMemcpyHtoD_v2", kUnsafe, dest, src, nbytes, nullptr, Waits::kSource);
}

CUresult cuMemcpyDtoH_v2(void* dest, CUdeviceptr src, size_t nbytes) {
  return DeviceToHost("cuMemcpyDtoH_v2", kUnsafe, dest, src, nbytes, nullptr, Waits::kAll);
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr dest, CUdeviceptr src, size_t nbytes) {
  return DeviceToDevice("cuMemcpyDtoD_v2", kUnsafe, dest, src, nbytes, nullptr);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr dest, CUcontext dest_context, CUdeviceptr src, CUcontext src_context,
                           size_t nbytes, CUstream stream) {
  return Enter("cuMemcpyPeerAsync", kContext, [&](Call& call) -> CUresult {
    std::shared_ptr<Context> to_context, from_context;
    if (CUresult code = FindContext(call, dest_context, &to_context); code != CUDA_SUCCESS) return code;
    if (CUresult code = FindContext(call, src_context, &from_context); code != CUDA_SUCCESS) return code;
    if (nbytes == 0) return CUDA_SUCCESS;
    Range to, from;
    CUresult code = DeviceRange(call, dest, nbytes, true, &to, to_context.get());
    if (code != CUDA_SUCCESS) return code;
    code = DeviceRange(call, src, nbytes, false, &from, from_context.get());
    if (code != CUDA_SUCCESS) return code;
    if (code = CheckOverlap(call, dest, src, nbytes); code != CUDA_SUCCESS) return code;
    return Copy(call, stream, std::move(to), std::move(from), Waits::kNo);
  });
}

CUresult cuMemsetD8Async(CUdeviceptr dest, unsigned char value, size_t count, CUstream stream) {
  return Fill("cuMemsetD8Async", 0, dest, value, 1, count, stream);
}

CUresult cuMemsetD32Async(CUdeviceptr dest, unsigned int value, size_t count, CUstream stream) {
  return Fill("cuMemsetD32Async", 0, dest, value, 4, count, stream);
}

CUresult cuMemsetD8_v2(CUdeviceptr dest, unsigned char value, size_t count) {
  return Fill("cuMemsetD8_v2", kUnsafe, dest, value, 1, count, nullptr);
}

FAKE_CUDA_ABI_END
