// From a file to the device: read into page-locked slots of the staging ring, several at a time, and copied from them
// while the next ones fill.
#include <cuda.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "backends/cuda/context.h"
#include "backends/cuda/driver.h"
#include "backends/cuda/record.h"
#include "backends/cuda/staging.h"
#include "lib/checks.h"
#include "lib/disk/stream.h"
#include "packalloc/backends/cuda.h"
#include "packalloc/disk_file.h"

namespace packalloc::internal {

absl::Status CudaRecord::CopyFromDisk(const CudaBuf& dest, const DiskExtent& src, std::size_t nbytes) {
  if (absl::Status fits = CheckCopy("CUDA: copy_from_disk", nbytes, dest.nbytes); !fits.ok()) return fits;
  if (absl::Status fits = CheckExtent(src, nbytes); !fits.ok()) return fits;
  if (nbytes == 0) return absl::OkStatus();
  const ScopedContext scope(*context_);
  if (!scope.status().ok()) return scope.status();
  if (absl::Status allowed = NotCapturing("copy_from_disk"); !allowed.ok()) return allowed;
  if (dest.kind == CudaMemory::kPinned) {
    if (absl::Status drained = Drain(); !drained.ok()) return drained;
    return src.file->Read(src.offset, {reinterpret_cast<std::byte*>(dest.ptr), nbytes});
  }

  std::vector<StagingRing::Lease> leases;  // of the stream's slots, by their number
  StreamOptions options{.staging_bytes = src.file->options().staging_bytes, .most_slot_bytes = chunk_bytes_};
  // Never waits: two loads that each held some slots would wait for each other.
  absl::StatusOr<StagingRing::Lease> first = ring_.TryAcquire();
  if (!first.ok()) return first.status();
  if (*first) {
    options.slot_memory = [&](std::size_t slot, std::size_t) -> absl::StatusOr<std::byte*> {
      absl::StatusOr<StagingRing::Lease> lease = slot == 0 ? std::move(first) : ring_.TryAcquire();
      if (!lease.ok()) return lease.status();
      if (!*lease) return absl::ResourceExhaustedError("CUDA: no page-locked slot is free");
      leases.push_back(*std::move(lease));
      return leases.back().data();
    };
    options.deliver = [&](std::size_t, std::size_t at, absl::Span<const std::byte> bytes, std::size_t slot) {
      absl::Status issued =
          Check(driver().Call(driver().cuMemcpyHtoDAsync_v2, dest.ptr + at, bytes.data(), bytes.size(), stream_),
                "cuMemcpyHtoDAsync_v2", bytes.size());
      return issued.ok() ? leases[slot].Fence() : issued;
    };
    options.slot_free = [&](std::size_t slot) { return leases[slot].Await(); };
  } else {
    options.deliver = [&](std::size_t, std::size_t at, absl::Span<const std::byte> bytes, std::size_t) {
      return Upload(dest.ptr + at, bytes);
    };
  }
  const StreamTarget target{.file = src.file.get(), .offset = src.offset, .nbytes = nbytes};
  return StreamFromDisk(absl::MakeConstSpan(&target, 1), options);
}

}  // namespace packalloc::internal
