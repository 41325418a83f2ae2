// Fallback: memory of a second allocator where the first one is exhausted: a slower pool behind a fast one.
//
//   absl::StatusOr<packalloc::PackedAllocator> fast = packalloc::Lru(*packalloc::Open("CPU+limited:max_bytes=1GiB"));
//   absl::StatusOr<packalloc::PackedAllocator> slow = packalloc::Pack(MyNumaAllocator());   // the same handle type
//   absl::StatusOr<packalloc::PackedAllocator> both = packalloc::Fallback(*fast, *slow);
//   absl::StatusOr<packalloc::AnyBuf> buf = both->alloc(1 << 20);
//   std::cout << packalloc::Find<packalloc::FallbackControl>(*both)->second_bytes() << " bytes in the slow memory\n";
#ifndef PACKALLOC_LAYERS_FALLBACK_H_
#define PACKALLOC_LAYERS_FALLBACK_H_

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "packalloc/allocator.h"
#include "packalloc/packed_allocator.h"

namespace packalloc {

// What Find<FallbackControl> finds. Thread-safe.
class FallbackControl {
 public:
  virtual ~FallbackControl() = default;
  // What the second record gave and was not given back.
  virtual std::size_t second_buffers() const = 0;
  virtual std::size_t second_bytes() const = 0;
};

// A record (or packed allocator) whose alloc asks `first`, and `second` where that answers RESOURCE_EXHAUSTED (where
// both do, the error has both messages). Each buffer is freed, copied and addressed by the record that made it.
// transfer between the two goes through the host, unless they are of one transfer domain. Members that only one of the
// two has are left empty. Name and controls are `first`'s, and Find<FallbackControl>.
//
// Each of the two has its own cache: Lru over Fallback would serve the second's buffers for ever, and is refused.
//
// INVALID_ARGUMENT where the two have handles of different types, or one has pointers as addresses and the other
// handles. FAILED_PRECONDITION for an empty packed allocator. Thread-safe.
absl::StatusOr<PackedAllocator> Fallback(const PackedAllocator& first, const PackedAllocator& second);
template <typename Buf>
absl::StatusOr<Allocator<Buf>> Fallback(Allocator<Buf> first, Allocator<Buf> second);

// The layer itself, over boxed handles of one type: for authors of layers.
absl::StatusOr<AnyRecord> FallbackLayer(AnyRecord first, AnyRecord second);

// ---- implementation ----

template <typename Buf>
absl::StatusOr<Allocator<Buf>> Fallback(Allocator<Buf> first, Allocator<Buf> second) {
  AnyRecord boxed = Erase<Buf>(std::make_shared<const Allocator<Buf>>(std::move(second)));
  return ApplyLayer(std::move(first),
                    [&](AnyRecord inner) { return FallbackLayer(std::move(inner), std::move(boxed)); });
}

}  // namespace packalloc

#endif  // PACKALLOC_LAYERS_FALLBACK_H_
