#include <chrono>
#include <cstddef>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "bench/bars.h"
#include "bench/measure.h"
#include "packalloc/backends/mock.h"
#include "packalloc/copy.h"
#include "packalloc/packed_allocator.h"

namespace packalloc::bench {
namespace {

constexpr std::size_t kChunks = 32;
constexpr std::size_t kChunk = std::size_t{64} << 10;
constexpr std::chrono::milliseconds kEach(2);

// A device on which each copy, either way, takes two milliseconds.
absl::StatusOr<PackedAllocator> SlowDevice() {
  Allocator<MockBuf> record = MockAllocator({.host_accessible = false, .log_calls = false});
  const auto wait = [] {
    std::this_thread::sleep_for(kEach);
    return absl::OkStatus();
  };
  Find<MockControl>(record)->OnCall(Member::kCopyin, wait);
  Find<MockControl>(record)->OnCall(Member::kCopyout, wait);
  return Pack(record);
}

}  // namespace

Bar StagedCopyOverSum() {
  return {"staged_copy_over_sum", "a staged Copy of 32 chunks of 2 ms each way over reading, then writing them", 0.65,
          Bar::Kind::kAtMost, []() -> absl::StatusOr<double> {
            absl::StatusOr<PackedAllocator> from = SlowDevice();
            absl::StatusOr<PackedAllocator> to = SlowDevice();
            if (!from.ok()) return from.status();
            if (!to.ok()) return to.status();
            absl::StatusOr<AnyBuf> src = from->alloc(kChunks * kChunk);
            absl::StatusOr<AnyBuf> dest = to->alloc(kChunks * kChunk);
            if (!src.ok()) return src.status();
            if (!dest.ok()) return dest.status();
            const CopyOptions options{.staging_bytes = 4 * kChunk};
            absl::StatusOr<CopyReport> report;
            const double seconds = WallSeconds([&] { report = Copy({*to, *dest}, {*from, *src}, options); });
            absl::Status done = report.status();
            if (done.ok() && report->peak_staging_bytes != options.staging_bytes) {
              done = absl::InternalError(absl::StrCat("staged ", report->peak_staging_bytes, " bytes"));
            }
            done.Update(from->free(*src, kChunks * kChunk));
            done.Update(to->free(*dest, kChunks * kChunk));
            if (!done.ok()) return done;
            return seconds / (2.0 * kChunks * std::chrono::duration<double>(kEach).count());
          }};
}

}  // namespace packalloc::bench
