// How much main memory there is for this process.
#ifndef PACKALLOC_BACKENDS_CPU_SYSTEM_MEMORY_H_
#define PACKALLOC_BACKENDS_CPU_SYSTEM_MEMORY_H_

#include <string>

#include "packalloc/allocator.h"

namespace packalloc {

// The machine's memory (MemTotal, MemAvailable), or less where a control group of this process, version 1 or 2, or one
// above it has a limit. Zeros where the kernel does not tell. `root` is where /proc and /sys are looked for.
// Thread-safe.
MemoryInfo SystemMemory(const std::string& root = "");

}  // namespace packalloc

#endif  // PACKALLOC_BACKENDS_CPU_SYSTEM_MEMORY_H_
