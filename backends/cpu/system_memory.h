// How much main memory there is for this process.
#ifndef PACKALLOC_BACKENDS_CPU_SYSTEM_MEMORY_H_
#define PACKALLOC_BACKENDS_CPU_SYSTEM_MEMORY_H_

#include <string>

#include "absl/status/statusor.h"
#include "packalloc/allocator.h"

namespace packalloc {

// The machine's memory (MemTotal, MemAvailable), or less where a control group of this process, version 1 or 2, or one
// above it has a limit. UNAVAILABLE if /proc/meminfo does not say. `root` is where /proc and /sys are looked for.
// Thread-safe.
absl::StatusOr<MemoryInfo> SystemMemory(const std::string& root = "");

}  // namespace packalloc

#endif  // PACKALLOC_BACKENDS_CPU_SYSTEM_MEMORY_H_
