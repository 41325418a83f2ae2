// Runs an allocation trace for real through a device, and tells what its cache made of it.
//
//   absl::StatusOr<ReplayResult> result = Replay("trace.csv", "CPU+lru", [](double part) {});
#ifndef PACKALLOC_TOOLS_REPLAY_H_
#define PACKALLOC_TOOLS_REPLAY_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"

namespace packalloc {

// Where a device has no cache, each allocation is a miss, nothing is cached and what is held is what is live.
struct ReplayResult {
  std::string device;
  std::uint64_t allocations = 0;
  std::uint64_t frees = 0;
  std::uint64_t recorded_failures = 0;  // "allocate failure" in the trace; nothing is done for them
  std::uint64_t hits = 0;
  std::uint64_t misses = 0;
  std::uint64_t evictions = 0;
  std::uint64_t peak_live_bytes = 0;  // sizes as asked for
  std::uint64_t peak_held_bytes = 0;  // live and cached, as taken from the device, after each operation
  std::uint64_t cached_bytes_end = 0;
  std::uint64_t live_bytes_end = 0;
  double ns_per_op = 0;  // of the calls alone, over allocations and frees
};

// Opens `device` anew (twice, one after the other: to count, and to measure without counting) and frees what the trace
// leaves allocated. `progress` gets the part done, 0 to 1, now and then. The errors of TraceReader; the device's own,
// behind file and line where it is an operation of the trace that fails.
absl::StatusOr<ReplayResult> Replay(const std::string& path, const std::string& device,
                                    const std::function<void(double part)>& progress);

}  // namespace packalloc

#endif  // PACKALLOC_TOOLS_REPLAY_H_
