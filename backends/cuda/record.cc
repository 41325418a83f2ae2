#include "backends/cuda/record.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "backends/cuda/context.h"
#include "backends/cuda/driver.h"
#include "lib/checked_math.h"
#include "packalloc/allocator.h"
#include "packalloc/backends/cuda.h"

namespace packalloc::internal {
namespace {

constexpr std::size_t kMostSlotBytes = std::size_t{1} << 30;

std::size_t PageBytes() {
  static const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return page;
}

// Never destroyed: records may go after main.
struct LiveRecords {
  std::mutex mutex;
  absl::flat_hash_map<std::uint32_t, std::weak_ptr<CudaRecord>> by_id;
};

LiveRecords& Live() {
  static auto& live = *new LiveRecords;
  return live;
}

std::uint32_t NewStreamId() {
  static std::atomic<std::uint32_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

absl::Status CheckOptions(const CudaOptions& options) {
  if (options.pinned_staging &&
      (options.staging_slots == 0 || options.staging_slot_bytes == 0 || options.staging_slot_bytes > kMostSlotBytes)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "CudaOptions: staging takes at least one slot of 1 to ", kMostSlotBytes, " bytes, not ", options.staging_slots,
        " of ", options.staging_slot_bytes, "; set pinned_staging = false to do without"));
  }
  // Its work is another stream's on each thread, so nothing would be ordered.
  if (options.stream.has_value() && *options.stream == CU_STREAM_PER_THREAD) {
    return absl::InvalidArgumentError(
        "CudaOptions::stream is the per-thread default stream, which is another stream on each thread; give a stream "
        "that cuStreamCreate made");
  }
  if (options.pool_release_threshold.has_value() && options.allocation != CudaAllocation::kStreamOrdered) {
    return absl::InvalidArgumentError("CudaOptions::pool_release_threshold is for CudaAllocation::kStreamOrdered only");
  }
  return absl::OkStatus();
}

absl::Status PreparePool(CudaContext& context, const CudaOptions& options) {
  if (options.allocation != CudaAllocation::kStreamOrdered) return absl::OkStatus();
  const CudaDriver& driver = context.driver();
  if (driver.cuMemAllocAsync == nullptr || driver.cuMemFreeAsync == nullptr ||
      driver.cuDeviceGetDefaultMemPool == nullptr || driver.cuMemPoolSetAttribute == nullptr ||
      driver.cuMemPoolTrimTo == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat(context.name(), ": this driver has no cuMemAllocAsync (CUDA 11.2 and later have); use kDriver"));
  }
  CUmemoryPool pool = nullptr;
  absl::Status got = context.Check(driver.Call(driver.cuDeviceGetDefaultMemPool, &pool, context.device()),
                                   "cuDeviceGetDefaultMemPool");
  if (!got.ok() || !options.pool_release_threshold.has_value()) return got;
  cuuint64_t threshold = *options.pool_release_threshold;
  return context.Check(driver.Call(driver.cuMemPoolSetAttribute, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                                   static_cast<void*>(&threshold)),
                       "cuMemPoolSetAttribute");
}

}  // namespace

absl::StatusOr<std::shared_ptr<CudaRecord>> CudaRecord::Open(const CudaOptions& options) {
  if (absl::Status valid = CheckOptions(options); !valid.ok()) return valid;
  absl::StatusOr<const CudaDriver*> driver = CudaDriver::Get();
  if (!driver.ok()) return driver.status();
  absl::StatusOr<std::shared_ptr<CudaContext>> context = CudaContext::Open(**driver, options.device, options.context);
  if (!context.ok()) return context.status();

  const ScopedContext scope(**context);
  if (!scope.status().ok()) return scope.status();
  if (absl::Status pool = PreparePool(**context, options); !pool.ok()) return pool;
  CUstream stream = options.stream.value_or(nullptr);
  if (!options.stream.has_value()) {
    absl::Status made =
        (*context)->Check((*driver)->Call((*driver)->cuStreamCreate, &stream, CU_STREAM_DEFAULT), "cuStreamCreate");
    if (!made.ok()) return made;
  }
  auto record = std::make_shared<CudaRecord>(*context, stream, !options.stream.has_value(), options);
  // A stream that is none would be found out here.
  if (absl::StatusOr<bool> capturing = record->IsCapturing(); !capturing.ok()) return capturing.status();
  LiveRecords& live = Live();
  const std::lock_guard<std::mutex> lock(live.mutex);
  live.by_id[record->id_] = record;
  return record;
}

std::shared_ptr<CudaRecord> CudaRecord::Find(std::uint32_t stream_id) {
  LiveRecords& live = Live();
  const std::lock_guard<std::mutex> lock(live.mutex);
  const auto it = live.by_id.find(stream_id);
  return it == live.by_id.end() ? nullptr : it->second.lock();
}

CudaRecord::CudaRecord(std::shared_ptr<CudaContext> context, CUstream stream, bool owns_stream,
                       const CudaOptions& options)
    : context_(std::move(context)),
      stream_(stream),
      owns_stream_(owns_stream),
      allocation_(options.allocation),
      id_(NewStreamId()),
      chunk_bytes_(*RoundUp(std::clamp<std::size_t>(options.staging_slot_bytes, 1, kMostSlotBytes), PageBytes())),
      ring_(*context_, stream, options.pinned_staging ? options.staging_slots : 0, chunk_bytes_) {}

CudaRecord::~CudaRecord() {
  // First of all: in a forked child another thread may have held the lock.
  if (driver().forked()) return;
  {
    LiveRecords& live = Live();
    const std::lock_guard<std::mutex> lock(live.mutex);
    live.by_id.erase(id_);
  }
  std::optional<ScopedContext> scope(std::in_place, *context_);
  if (!scope->status().ok()) scope.emplace(*context_);  // nobody could try again later
  if (scope->status().ok()) {
    // Waiting would break a capture that is under way on the caller's stream, so what is left then stays.
    const absl::StatusOr<bool> capturing = IsCapturing();
    if (capturing.ok() && *capturing) return;
    static_cast<void>(Drain());  // there is nobody to tell
    ReleaseDeferred();
  }
  ring_.Release();
  if (scope->status().ok() && owns_stream_ && !context_->MemoryIsGone()) {
    driver().Release(driver().cuStreamDestroy_v2, stream_);
  }
}

absl::StatusOr<bool> CudaRecord::IsCapturing() {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = driver().Call(driver().cuStreamIsCapturing, stream_, &status);
  // The legacy stream cannot be used while another stream that orders with it is captured.
  if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return true;
  if (result != CUDA_SUCCESS) return Check(result, "cuStreamIsCapturing");
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

absl::Status CudaRecord::NotCapturing(absl::string_view operation) {
  absl::StatusOr<bool> capturing = IsCapturing();
  if (!capturing.ok()) return capturing.status();
  if (!*capturing) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(name(), ": ", operation,
                                                    " cannot be captured into a graph, and the stream is being "
                                                    "captured; do it before the capture or after it"));
}

CudaStats CudaRecord::stats() const {
  const StagingRing::Stats ring = ring_.stats();
  CudaStats stats;
  stats.staging_bytes = ring.bytes;
  stats.staging_slots = ring.slots;
  stats.staging_is_pinned = ring.pinned;
  stats.pinned_bytes = pinned_bytes_.load(std::memory_order_relaxed);
  stats.pinned_buffers = pinned_buffers_.load(std::memory_order_relaxed);
  const std::lock_guard<std::mutex> lock(mutex_);
  stats.deferred_frees = deferred_.size();
  return stats;
}

}  // namespace packalloc::internal
