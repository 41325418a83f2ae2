// A backend of one's own: the C heap behind a record. HeapAllocator() is all that an engine needs of it.
#ifndef PACKALLOC_EXAMPLES_HEAP_BACKEND_H_
#define PACKALLOC_EXAMPLES_HEAP_BACKEND_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "packalloc/allocator.h"

// [snippet]
inline packalloc::Allocator<std::byte*> HeapAllocator() {
  packalloc::Allocator<std::byte*> heap;  // std::byte* is this backend's handle; any copyable type will do
  heap.traits.name = "HEAP";
  heap.traits.min_alignment = alignof(std::max_align_t);
  heap.alloc = [](std::size_t nbytes, const packalloc::BufferSpec& spec) -> absl::StatusOr<std::byte*> {
    if (absl::Status valid = packalloc::ValidateSpec(spec); !valid.ok()) return valid;
    if (nbytes > PTRDIFF_MAX) return absl::InvalidArgumentError("a size above PTRDIFF_MAX");
    if (spec.external_ptr) {  // memory that somebody else owns
      const bool aligned = spec.alignment == 0 || *spec.external_ptr % spec.alignment == 0;
      if (spec.zero || !aligned) return absl::InvalidArgumentError("external_ptr is misaligned, or to be zeroed");
      return reinterpret_cast<std::byte*>(*spec.external_ptr);
    }
    void* data = nullptr;
    if (posix_memalign(&data, std::max(spec.alignment, alignof(std::max_align_t)), nbytes) != 0) {
      return absl::ResourceExhaustedError(absl::StrCat("the heap has no ", nbytes, " bytes"));
    }
    if (spec.zero) std::memset(data, 0, nbytes);
    return static_cast<std::byte*>(data);
  };
  heap.free = [](std::byte* const& buf, std::size_t /*nbytes*/, const packalloc::BufferSpec& spec) {
    if (!spec.external_ptr) std::free(buf);
    return absl::OkStatus();
  };
  heap.copyin = [](std::byte* const& dest, absl::Span<const std::byte> src) {
    std::memcpy(dest, src.data(), src.size());
    return absl::OkStatus();
  };
  heap.copyout = [](absl::Span<std::byte> dest, std::byte* const& src) {
    std::memcpy(dest.data(), src, dest.size());
    return absl::OkStatus();
  };
  heap.addr = [](std::byte* const& buf) { return packalloc::DeviceAddress{reinterpret_cast<std::uintptr_t>(buf), 0}; };
  // Views cost two lines more. What is left empty, this backend cannot, and packalloc says so.
  heap.offset = [](std::byte* const& buf, std::size_t /*nbytes*/,
                   std::size_t byte_offset) -> absl::StatusOr<std::byte*> { return buf + byte_offset; };
  return heap;
}
// [/snippet]

#endif  // PACKALLOC_EXAMPLES_HEAP_BACKEND_H_
