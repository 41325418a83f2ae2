// NullAllocator: hands out addresses and moves no bytes. For measuring what everything around a backend costs, and
// for running an engine's allocation pattern without the memory.
//
//   absl::StatusOr<packalloc::PackedAllocator> device = packalloc::Pack(packalloc::NullAllocator());
//   absl::StatusOr<packalloc::AnyBuf> buf = device->alloc(std::size_t{1} << 40);   // a terabyte, at once
//   std::size_t live = device->memory_info()->total_bytes - device->memory_info()->free_bytes;
//   absl::Status freed = device->free(*buf, std::size_t{1} << 40);
#ifndef PACKALLOC_BACKENDS_NULL_H_
#define PACKALLOC_BACKENDS_NULL_H_

#include <cstddef>

#include "packalloc/allocator.h"

namespace packalloc {

struct NullOptions {
  std::size_t total_bytes = std::size_t{1} << 54;  // what memory_info says there is; not a limit
};

// A new record, named "NULL". Its addresses lie where no process has memory, are aligned to 64 bytes (or to the spec)
// and come again only after 16 PiB more have been handed out. copyin, copyout and transfer succeed and touch nothing:
// a destination keeps its bytes, and `zero` is granted as nobody can read. There is no host_ptr. free_bytes of
// memory_info falls by what is live, each buffer rounded up to 64 bytes (and with room for a larger alignment).
// INVALID_ARGUMENT as CpuAllocator. Every NULL record is a transfer domain of its own. Never fails; thread-safe.
Allocator<void*> NullAllocator(const NullOptions& options = {});

}  // namespace packalloc

#endif  // PACKALLOC_BACKENDS_NULL_H_
