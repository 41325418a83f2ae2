// CpuAllocator: main memory as a device. Large buffers come in huge pages, because the first touch of small ones is
// most of what a large buffer costs.
//
//   packalloc::Allocator<packalloc::CpuBuf> cpu = packalloc::CpuAllocator({.max_bytes = std::size_t{4} << 30});
//   absl::StatusOr<packalloc::CpuBuf> buf = cpu.alloc(1 << 20, {.zero = true, .alignment = 4096});
//   std::memset(buf->data, 1, buf->nbytes);                                  // it is plain memory
//   absl::Status freed = cpu.free(*buf, 1 << 20, {.zero = true, .alignment = 4096});
//
//   absl::StatusOr<packalloc::PackedAllocator> device = packalloc::Open("CPU");          // by name: registry.h
#ifndef PACKALLOC_BACKENDS_CPU_H_
#define PACKALLOC_BACKENDS_CPU_H_

#include <cstddef>
#include <limits>

#include "packalloc/allocator.h"

namespace packalloc {

// `nbytes` of main memory from `data` on; of a view, the view's. Owns nothing. Null and 0 for an empty buffer.
struct CpuBuf {
  std::byte* data = nullptr;
  std::size_t nbytes = 0;
};

struct CpuOptions {
  // Bytes that may be in use at a time, as asked for (wrapped memory does not count). More is RESOURCE_EXHAUSTED.
  std::size_t max_bytes = std::numeric_limits<std::size_t>::max();
  // From 2 MiB up: memory of its own mapping, aligned to 2 MiB, with huge pages asked of the kernel (MADV_HUGEPAGE).
  // Off, everything comes from the heap.
  bool huge_pages = true;
};

// A new record, named "CPU". Alignment 64 bytes unless the spec asks for more; memory below 2 MiB comes from the heap.
// Has every optional member but synchronize (all is done on return) and copy_from_disk. All CPU records are one
// transfer and one memory domain. Works in a forked child. Never fails; thread-safe.
//
// Beyond the contract of Allocator:
//  - alloc: RESOURCE_EXHAUSTED where the kernel or max_bytes refuses; INVALID_ARGUMENT for an external_ptr that is not
//    as aligned as the spec says, or together with `zero` (that would overwrite what somebody else owns).
//  - free, copyin, copyout, offset, transfer check sizes and ranges, as a CpuBuf knows its size; but not who owns it
//    (the packed allocator does).
//  - memory_info: what is available to this process (MemAvailable, control-group limits, max_bytes). UNAVAILABLE if
//    /proc/meminfo cannot be read.
Allocator<CpuBuf> CpuAllocator(const CpuOptions& options = {});

}  // namespace packalloc

#endif  // PACKALLOC_BACKENDS_CPU_H_
