// Copies between the host and one record's buffers.
#include <cuda.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "backends/cuda/context.h"
#include "backends/cuda/driver.h"
#include "backends/cuda/record.h"
#include "backends/cuda/staging.h"
#include "lib/checks.h"
#include "packalloc/backends/cuda.h"

namespace packalloc::internal {

absl::Status CudaRecord::CopyIn(const CudaBuf& dest, absl::Span<const std::byte> src) {
  if (absl::Status fits = CheckCopy("CUDA: copyin", src.size(), dest.nbytes); !fits.ok()) return fits;
  if (src.empty()) return absl::OkStatus();
  const ScopedContext scope(*context_);
  if (!scope.status().ok()) return scope.status();
  if (absl::Status allowed = NotCapturing("copyin"); !allowed.ok()) return allowed;
  if (dest.kind != CudaMemory::kPinned) return Upload(dest.ptr, src);
  if (absl::Status drained = Drain(); !drained.ok()) return drained;
  std::memmove(reinterpret_cast<void*>(dest.ptr), src.data(), src.size());
  return absl::OkStatus();
}

absl::Status CudaRecord::Upload(CUdeviceptr dest, absl::Span<const std::byte> src) {
  while (!src.empty()) {
    absl::StatusOr<StagingRing::Lease> slot = ring_.Acquire();
    if (!slot.ok()) return slot.status();
    // Pageable memory may be read now or later, so it takes a wait to know that it was.
    const std::size_t nbytes = *slot ? std::min(src.size(), slot->size()) : src.size();
    const void* from = src.data();
    if (*slot) from = std::memcpy(slot->data(), src.data(), nbytes);
    absl::Status issued = Check(driver().Call(driver().cuMemcpyHtoDAsync_v2, dest, from, nbytes, stream_),
                                "cuMemcpyHtoDAsync_v2", nbytes);
    if (!issued.ok()) return issued;
    absl::Status fenced = *slot ? slot->Fence() : Drain();
    if (!fenced.ok()) return fenced;
    dest += nbytes;
    src.remove_prefix(nbytes);
  }
  return absl::OkStatus();
}

absl::Status CudaRecord::CopyOut(absl::Span<std::byte> dest, const CudaBuf& src) {
  if (absl::Status fits = CheckCopy("CUDA: copyout", dest.size(), src.nbytes); !fits.ok()) return fits;
  if (dest.empty()) return absl::OkStatus();
  const ScopedContext scope(*context_);
  if (!scope.status().ok()) return scope.status();
  if (absl::Status allowed = NotCapturing("copyout"); !allowed.ok()) return allowed;
  if (src.kind == CudaMemory::kPinned) {
    if (absl::Status drained = Drain(); !drained.ok()) return drained;
    std::memmove(dest.data(), reinterpret_cast<const void*>(src.ptr), dest.size());
    return absl::OkStatus();
  }
  void* to = dest.data();
  absl::Status issued = Check(driver().Call(driver().cuMemcpyDtoHAsync_v2, to, src.ptr, dest.size(), stream_),
                              "cuMemcpyDtoHAsync_v2", dest.size());
  return issued.ok() ? Drain() : issued;
}

}  // namespace packalloc::internal
