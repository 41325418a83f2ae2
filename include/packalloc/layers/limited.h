// Limited: an allocator that gives out at most so many bytes at a time, whatever the device has: to share a device, or
// to see how an engine does with less.
//
//   absl::StatusOr<packalloc::PackedAllocator> device =      // or Open("CUDA:0+limited:max_bytes=2MiB+lru")
//       packalloc::Lru(*packalloc::Limited(*packalloc::Open("CUDA:0"), 2 << 20));
//   absl::StatusOr<packalloc::AnyBuf> a = device->alloc(1 << 20);
//   absl::StatusOr<packalloc::AnyBuf> b = device->alloc(3 << 20);      // RESOURCE_EXHAUSTED, with the numbers
//   std::cout << packalloc::Find<packalloc::LimitedControl>(*device)->used_bytes() << " bytes taken\n";
#ifndef PACKALLOC_LAYERS_LIMITED_H_
#define PACKALLOC_LAYERS_LIMITED_H_

#include <cstddef>
#include <utility>

#include "absl/status/statusor.h"
#include "packalloc/allocator.h"
#include "packalloc/packed_allocator.h"

namespace packalloc {

// What Find<LimitedControl> finds. Thread-safe.
class LimitedControl {
 public:
  virtual ~LimitedControl() = default;
  virtual std::size_t max_bytes() const = 0;
  // Taken from the inner record and not given back, including what an alloc that is under way asks for.
  virtual std::size_t used_bytes() const = 0;
};

// A record (or packed allocator) like `record` whose alloc is RESOURCE_EXHAUSTED, naming the numbers and without a call
// of `record`, where more than `max_bytes` (as asked of `record`) would be allocated at a time; also under threads.
// External memory does not count. memory_info, where there is one, tells of the limit; traits.max_alloc_bytes too.
//
// The better place is inside a cache, which releases what it keeps when the limit is reached. Over one, what the cache
// keeps counts as well, and is trimmed to make room.
//
// Errors are `record`'s. FAILED_PRECONDITION for an empty packed allocator. Thread-safe.
absl::StatusOr<PackedAllocator> Limited(const PackedAllocator& packed, std::size_t max_bytes);
template <typename Buf>
absl::StatusOr<Allocator<Buf>> Limited(Allocator<Buf> record, std::size_t max_bytes);

// The layer itself, over boxed handles: for authors of layers.
absl::StatusOr<AnyRecord> LimitedLayer(AnyRecord inner, std::size_t max_bytes);

// ---- implementation ----

template <typename Buf>
absl::StatusOr<Allocator<Buf>> Limited(Allocator<Buf> record, std::size_t max_bytes) {
  return ApplyLayer(std::move(record), [&](AnyRecord inner) { return LimitedLayer(std::move(inner), max_bytes); });
}

}  // namespace packalloc

#endif  // PACKALLOC_LAYERS_LIMITED_H_
