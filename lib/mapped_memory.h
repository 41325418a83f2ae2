// Memory in a mapping of its own, in huge pages where the kernel has them: quicker to touch first, and read into by
// direct I/O in fewer requests, for a disk's request takes a few hundred ranges of memory, and each small page is one.
//
//   absl::StatusOr<std::byte*> slot = MapMemory("staging", nbytes, kHugePage, true);
//   ...
//   munmap(*slot, MappedBytes(nbytes));
#ifndef PACKALLOC_LIB_MAPPED_MEMORY_H_
#define PACKALLOC_LIB_MAPPED_MEMORY_H_

#include <cstddef>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace packalloc {

inline constexpr std::size_t kHugePage = std::size_t{2} << 20;  // bytes

// Bytes of the whole pages that hold `nbytes`, which is at most PTRDIFF_MAX.
std::size_t MappedBytes(std::size_t nbytes);

// Zero-filled memory, MappedBytes(nbytes) of it, for the caller to unmap. `alignment` is a power of two and at least a
// page. With `huge_pages` the kernel is asked for them, and may have none. RESOURCE_EXHAUSTED beginning with `who`.
absl::StatusOr<std::byte*> MapMemory(absl::string_view who, std::size_t nbytes, std::size_t alignment, bool huge_pages);

}  // namespace packalloc

#endif  // PACKALLOC_LIB_MAPPED_MEMORY_H_
