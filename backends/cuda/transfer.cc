// Copies between two buffers, perhaps of two records. A buffer's work is ordered on the stream of the record that made
// it, so a copy is issued on one of the two streams, after the pending work of the other, which then waits for the
// copy.
#include <cuda.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "backends/cuda/context.h"
#include "backends/cuda/driver.h"
#include "backends/cuda/record.h"
#include "backends/cuda/staging.h"
#include "lib/checks.h"
#include "packalloc/backends/cuda.h"

namespace packalloc::internal {
namespace {

// An overlapping copy is done in pieces that do not overlap, by way of other memory if that would take more pieces.
constexpr std::size_t kMostPieces = 64;
constexpr std::size_t kBounceBytes = std::size_t{16} << 20;

enum class Route {
  kHost,        // pinned to pinned
  kFromPinned,  // pinned to device
  kToPinned,    // device to pinned
  kLocal,       // inside one context
  kPeer,        // between two contexts
  kStaged,      // between two devices that do not reach each other: through page-locked memory
};

// A record that a buffer belongs to, kept alive meanwhile.
struct Owner {
  CudaRecord* record;
  std::shared_ptr<CudaRecord> keep;
};

absl::StatusOr<Owner> OwnerOf(const CudaBuf& buf, CudaRecord& called) {
  if (std::shared_ptr<CudaRecord> record = CudaRecord::Find(buf.stream_id)) return Owner{record.get(), record};
  if (buf.device == called.device()) return Owner{&called, nullptr};
  return absl::InvalidArgumentError(
      absl::StrCat(called.name(), ": transfer with a buffer of CUDA:", buf.device, " whose record is gone"));
}

bool SameStream(const CudaRecord& a, const CudaRecord& b) {
  return a.stream() == b.stream() && a.context() == b.context();
}

// What is issued on the stream of `later` from now on waits for all that was issued on that of `earlier`.
absl::Status OrderAfter(CudaRecord& later, CudaRecord& earlier) {
  const CudaDriver& driver = earlier.driver();
  const ScopedContext of_event(earlier.cuda_context());
  if (!of_event.status().ok()) return of_event.status();
  CUevent event = nullptr;
  absl::Status done =
      earlier.Check(driver.Call(driver.cuEventCreate, &event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  if (!done.ok()) return done;
  done = earlier.Check(driver.Call(driver.cuEventRecord, event, earlier.stream()), "cuEventRecord");
  if (done.ok()) {
    const ScopedContext of_wait(later.cuda_context());
    done = of_wait.status();
    if (done.ok()) {
      done = later.Check(driver.Call(driver.cuStreamWaitEvent, later.stream(), event, 0U), "cuStreamWaitEvent");
    }
  }
  driver.Release(driver.cuEventDestroy_v2, event);  // once recorded it is not needed for the wait
  return done;
}

absl::Status DrainIn(CudaRecord& record) {
  const ScopedContext scope(record.cuda_context());
  return scope.status().ok() ? record.Drain() : scope.status();
}

// All below: one copy, issued on the stream of the record that runs it, whose context is current.

absl::Status CopyOnDevice(CudaRecord& record, CUdeviceptr dest, CUdeviceptr src, std::size_t nbytes) {
  const CudaDriver& driver = record.driver();
  return record.Check(driver.Call(driver.cuMemcpyDtoDAsync_v2, dest, src, nbytes, record.stream()),
                      "cuMemcpyDtoDAsync_v2", nbytes);
}

// Calls copy(offset, nbytes) for pieces of `step` bytes, in the order in which memmove may overwrite.
template <typename Copy>
absl::Status InPieces(bool backwards, std::size_t nbytes, std::size_t step, Copy copy) {
  for (std::size_t done = 0; done < nbytes;) {
    const std::size_t piece = std::min(step, nbytes - done);
    const std::size_t offset = backwards ? nbytes - done - piece : done;
    if (absl::Status copied = copy(offset, piece); !copied.ok()) return copied;
    done += piece;
  }
  return absl::OkStatus();
}

absl::Status CopyLocal(CudaRecord& record, CUdeviceptr dest, CUdeviceptr src, std::size_t nbytes) {
  const bool backwards = dest > src;
  const std::size_t distance = backwards ? dest - src : src - dest;
  if (distance >= nbytes) return CopyOnDevice(record, dest, src, nbytes);
  if (nbytes / distance < kMostPieces) {
    return InPieces(backwards, nbytes, distance, [&](std::size_t offset, std::size_t piece) {
      return CopyOnDevice(record, dest + offset, src + offset, piece);
    });
  }
  const CudaDriver& driver = record.driver();
  if (absl::Status allowed = record.NotCapturing("a transfer between ranges that overlap this much"); !allowed.ok()) {
    return allowed;
  }
  const std::size_t step = std::min(nbytes, kBounceBytes);
  CUdeviceptr bounce = 0;
  absl::Status copied = record.Check(driver.Call(driver.cuMemAlloc_v2, &bounce, step), "cuMemAlloc_v2", step);
  if (!copied.ok()) return copied;
  copied = InPieces(backwards, nbytes, step, [&](std::size_t offset, std::size_t piece) {
    absl::Status out = CopyOnDevice(record, bounce, src + offset, piece);
    return out.ok() ? CopyOnDevice(record, dest + offset, bounce, piece) : out;
  });
  const absl::Status drained = record.Drain();
  if (!record.cuda_context().MemoryIsGone()) driver.Release(driver.cuMemFree_v2, bounce);
  return copied.ok() ? drained : copied;
}

absl::Status CopyThroughHost(CudaRecord& to, CudaRecord& from, CUdeviceptr dest, CUdeviceptr src, std::size_t nbytes) {
  const CudaDriver& driver = to.driver();
  std::vector<std::byte> pageable;
  while (nbytes != 0) {
    absl::StatusOr<StagingRing::Lease> slot = to.ring().Acquire();
    if (!slot.ok()) return slot.status();
    const std::size_t piece = std::min(nbytes, to.staging_chunk_bytes());
    if (!*slot) pageable.resize(piece);
    void* const host = *slot ? slot->data() : pageable.data();
    {
      const ScopedContext scope(from.cuda_context());
      if (!scope.status().ok()) return scope.status();
      absl::Status out = from.Check(driver.Call(driver.cuMemcpyDtoHAsync_v2, host, src, piece, from.stream()),
                                    "cuMemcpyDtoHAsync_v2", piece);
      if (!out.ok()) return out;
    }
    absl::Status in = *slot ? OrderAfter(to, from) : DrainIn(from);
    if (in.ok()) {
      in = to.Check(driver.Call(driver.cuMemcpyHtoDAsync_v2, dest, static_cast<const void*>(host), piece, to.stream()),
                    "cuMemcpyHtoDAsync_v2", piece);
    }
    if (in.ok()) in = *slot ? slot->Fence() : to.Drain();
    if (!in.ok()) {
      // Nobody gets the host memory while a device may write it.
      static_cast<void>(DrainIn(from));
      return in;
    }
    dest += piece;
    src += piece;
    nbytes -= piece;
  }
  return absl::OkStatus();
}

struct Plan {
  Route route;
  CudaRecord* runner;  // on whose stream the copy is issued
};

absl::StatusOr<Plan> PlanCopy(const CudaBuf& dest, const CudaBuf& src, CudaRecord& to, CudaRecord& from) {
  const bool to_host = dest.kind == CudaMemory::kPinned;
  const bool from_host = src.kind == CudaMemory::kPinned;
  if (to_host && from_host) return Plan{Route::kHost, &to};
  if (from_host) return Plan{Route::kFromPinned, &to};
  if (to_host) return Plan{Route::kToPinned, &from};
  if (to.context() == from.context()) return Plan{Route::kLocal, &to};
  if (to.device() == from.device()) return Plan{Route::kPeer, &to};
  for (const auto& [runner, other] : {std::pair(&to, &from), std::pair(&from, &to)}) {
    const ScopedContext scope(runner->cuda_context());
    if (!scope.status().ok()) return scope.status();
    absl::StatusOr<bool> reaches = runner->cuda_context().CanReach(other->cuda_context());
    if (!reaches.ok()) return reaches.status();
    if (*reaches) return Plan{Route::kPeer, runner};
  }
  return Plan{Route::kStaged, &to};
}

absl::Status Issue(const Plan& plan, const CudaBuf& dest, const CudaBuf& src, CudaRecord& to, CudaRecord& from,
                   std::size_t nbytes) {
  CudaRecord& runner = *plan.runner;
  const CudaDriver& driver = runner.driver();
  const ScopedContext scope(runner.cuda_context());
  if (!scope.status().ok()) return scope.status();
  switch (plan.route) {
    case Route::kHost:
      std::memmove(reinterpret_cast<void*>(dest.ptr), reinterpret_cast<const void*>(src.ptr), nbytes);
      return absl::OkStatus();
    case Route::kFromPinned:
      return runner.Check(driver.Call(driver.cuMemcpyHtoDAsync_v2, dest.ptr, reinterpret_cast<const void*>(src.ptr),
                                      nbytes, runner.stream()),
                          "cuMemcpyHtoDAsync_v2", nbytes);
    case Route::kToPinned:
      return runner.Check(
          driver.Call(driver.cuMemcpyDtoHAsync_v2, reinterpret_cast<void*>(dest.ptr), src.ptr, nbytes, runner.stream()),
          "cuMemcpyDtoHAsync_v2", nbytes);
    case Route::kLocal:
      return CopyLocal(runner, dest.ptr, src.ptr, nbytes);
    case Route::kPeer:
      return runner.Check(driver.Call(driver.cuMemcpyPeerAsync, dest.ptr, to.context(), src.ptr, from.context(), nbytes,
                                      runner.stream()),
                          "cuMemcpyPeerAsync", nbytes);
    case Route::kStaged:
      return CopyThroughHost(to, from, dest.ptr, src.ptr, nbytes);
  }
  return absl::InternalError("no such route");
}

}  // namespace

absl::Status CudaRecord::Transfer(const CudaBuf& dest, const CudaBuf& src, std::size_t nbytes) {
  if (absl::Status fits = CheckCopy("CUDA: transfer to the destination", nbytes, dest.nbytes); !fits.ok()) return fits;
  if (absl::Status fits = CheckCopy("CUDA: transfer from the source", nbytes, src.nbytes); !fits.ok()) return fits;
  if (nbytes == 0) return absl::OkStatus();
  if (absl::Status usable = context_->Usable(); !usable.ok()) return usable;
  if (dest.ptr == src.ptr) return absl::OkStatus();
  absl::StatusOr<Owner> to = OwnerOf(dest, *this);
  if (!to.ok()) return to.status();
  absl::StatusOr<Owner> from = OwnerOf(src, *this);
  if (!from.ok()) return from.status();

  // This record's too: its synchronize has to wait for the copy.
  absl::InlinedVector<CudaRecord*, 3> streams;
  for (CudaRecord* record : {to->record, from->record, this}) {
    const auto same = [&](const CudaRecord* other) { return SameStream(*record, *other); };
    if (std::none_of(streams.begin(), streams.end(), same)) streams.push_back(record);
  }
  const bool on_host = dest.kind == CudaMemory::kPinned && src.kind == CudaMemory::kPinned;
  // One stream may be captured; events between a captured stream and another would break the capture.
  if (streams.size() > 1 || on_host) {
    for (CudaRecord* record : streams) {
      const ScopedContext scope(record->cuda_context());
      if (!scope.status().ok()) return scope.status();
      if (absl::Status allowed = record->NotCapturing("this transfer"); !allowed.ok()) return allowed;
      absl::Status drained = on_host ? record->Drain() : absl::OkStatus();
      if (!drained.ok()) return drained;
    }
  }
  absl::StatusOr<Plan> plan = PlanCopy(dest, src, *to->record, *from->record);
  if (!plan.ok()) return plan.status();
  CudaRecord& runner = *plan->runner;
  const auto others = [&](auto order) -> absl::Status {
    for (CudaRecord* record : streams) {
      if (SameStream(*record, runner) || on_host) continue;
      if (absl::Status ordered = order(*record); !ordered.ok()) return ordered;
    }
    return absl::OkStatus();
  };
  absl::Status before = others([&](CudaRecord& other) { return OrderAfter(runner, other); });
  if (!before.ok()) return before;
  absl::Status issued = Issue(*plan, dest, src, *to->record, *from->record, nbytes);
  absl::Status after = others([&](CudaRecord& other) { return OrderAfter(other, runner); });
  // Where the others cannot be made to wait for the copy, this thread does.
  if (!after.ok()) after = DrainIn(runner);
  return issued.ok() ? after : issued;
}

}  // namespace packalloc::internal
