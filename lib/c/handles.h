// What the handles of the C ABI stand for.
#ifndef PACKALLOC_LIB_C_HANDLES_H_
#define PACKALLOC_LIB_C_HANDLES_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/c/handle_table.h"
#include "packalloc/buffer_spec.h"
#include "packalloc/c/types.h"
#include "packalloc/packed_allocator.h"

namespace packalloc {

struct BufferEntry {
  PackedAllocator allocator;
  AnyBuf buffer;
  BufferSpec spec{};
  std::optional<HandleTable<BufferEntry>::Pin> base{};  // of a view
};
using BufferPin = HandleTable<BufferEntry>::Pin;

HandleTable<PackedAllocator>& Allocators();
HandleTable<BufferEntry>& Buffers();

template <typename Handle>
std::uint64_t NumberOf(const Handle* handle) {
  return reinterpret_cast<std::uintptr_t>(handle);
}
template <typename Handle>
Handle* HandleOf(std::uint64_t number) {
  return reinterpret_cast<Handle*>(static_cast<std::uintptr_t>(number));
}

// The allocator itself, which then outlives its handle: a call under way may close it.
absl::StatusOr<PackedAllocator> FindAllocator(std::uint64_t number);

// alloc, with the result in the table.
absl::StatusOr<std::uint64_t> AllocEntry(const PackedAllocator& allocator, std::size_t nbytes, const BufferSpec& spec);
// free with `nbytes` (nullopt: those of the buffer), and of a view the end of the view.
absl::Status FreeEntry(std::uint64_t number, std::optional<std::size_t> nbytes, std::optional<BufferSpec> spec);

absl::StatusOr<BufferSpec> SpecFromC(const packalloc_buffer_spec* spec);  // null: the default
packalloc_buffer_spec SpecToC(const BufferSpec& spec);

}  // namespace packalloc

#endif  // PACKALLOC_LIB_C_HANDLES_H_
