// BufferSpec: what kind of memory a buffer is to be. Passed to every alloc and, unchanged, to the matching free.
//
//   packalloc::BufferSpec pinned{.host = true};
//   auto buf = allocator.alloc(1 << 20, pinned);                         // pinned host memory on CUDA
//   auto row = allocator.alloc(4096, {.zero = true, .alignment = 256});  // 256-byte aligned, zero-filled
//
//   float weights[1024];                                                 // memory that somebody else owns
//   auto view = allocator.alloc(sizeof weights,
//                               {.external_ptr = reinterpret_cast<std::uintptr_t>(weights)});
#ifndef PACKALLOC_BUFFER_SPEC_H_
#define PACKALLOC_BUFFER_SPEC_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"

namespace packalloc {

// Compares and hashes by value: it is part of every cache key. Every field is honoured by a backend or answered with
// INVALID_ARGUMENT; none is silently ignored. `host`, `cpu_access` and `uncached` ask for a property, so memory that
// has it anyway (the CPU's) grants it. Follows tinygrad's BufferSpec, with `zero` and `alignment` added.
struct BufferSpec {
  bool uncached = false;                         // memory that the CPU does not cache
  bool cpu_access = false;                       // device memory that the CPU can read and write
  bool host = false;                             // host memory (pinned, on CUDA)
  bool nolru = false;                            // never kept by a cache on free
  bool zero = false;                             // comes zero-filled; a cache never serves it
  std::size_t alignment = 0;                     // bytes; 0: the backend's default, else a power of two
  std::optional<std::uintptr_t> external_ptr{};  // wrap this memory: never allocated, freed or cached

  friend bool operator==(const BufferSpec&, const BufferSpec&) = default;

  template <typename H>
  friend H AbslHashValue(H h, const BufferSpec& s) {
    return H::combine(std::move(h), s.alignment, s.external_ptr, s.uncached, s.cpu_access, s.host, s.nolru, s.zero);
  }
};

// The largest alignment, in bytes, that a spec may ask for (1 GiB, the largest page of common machines).
inline constexpr std::size_t kMaxAlignment = std::size_t{1} << 30;

// OK, or INVALID_ARGUMENT naming the field and its value: an alignment that is neither 0 nor a power of two up to
// kMaxAlignment, or a null external_ptr. Thread-safe.
absl::Status ValidateSpec(const BufferSpec& spec);

// For messages and logs: "{}" for the default, else the fields that differ from it, as "{host alignment=64}".
std::string ToString(const BufferSpec& spec);

}  // namespace packalloc

#endif  // PACKALLOC_BUFFER_SPEC_H_
