// Lru: keeps freed buffers and serves them again, because asking a driver for memory costs far more than looking in a
// table. Bounded, least recently used first, and gives everything back before memory is reported exhausted.
//
//   absl::StatusOr<packalloc::PackedAllocator> device =
//       packalloc::Lru(*packalloc::Pack(packalloc::CpuAllocator()), {.max_bytes = 256 << 20});
//   absl::StatusOr<packalloc::AnyBuf> a = device->alloc(1 << 20);     // a miss: taken from the CPU
//   absl::Status freed = device->free(*a, 1 << 20);                   // kept
//   absl::StatusOr<packalloc::AnyBuf> b = device->alloc(1 << 20);     // a hit: the same memory
//   std::shared_ptr<packalloc::LruControl> cache = packalloc::Find<packalloc::LruControl>(*device);
//   std::cout << cache->stats().hits << " hits\n";
//   absl::Status cleared = cache->Clear();                            // gives back what is cached
//
// Which policy, measured: docs/layers/lru.md.
#ifndef PACKALLOC_LAYERS_LRU_H_
#define PACKALLOC_LAYERS_LRU_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "packalloc/allocator.h"
#include "packalloc/packed_allocator.h"

namespace packalloc {

// Which buffer is released when there are too many.
enum class EvictionPolicy {
  kLru,             // the least recently used
  kGreedyDualSize,  // the lowest of (rank of the last one released, when it was last used) + 1 / size: large ones
                    // first, and small ones once they have not been used for long (Cao and Irani 1997, with equal
                    // costs)
};

struct LruOptions {
  // The most bytes that are kept, in size classes. Never exceeded; a buffer larger than this is not kept.
  std::size_t max_bytes = std::numeric_limits<std::size_t>::max();
  EvictionPolicy policy = EvictionPolicy::kLru;
  // 0: a buffer serves requests of exactly its size, as in tinygrad and tolk. Else, up to 1: requests are rounded up to
  // fixed size classes, by at most max(max_waste * nbytes, 255 bytes), so that sizes that keep changing hit too.
  double max_waste = 0;
  // Whether freeing a buffer twice, one of another allocator, or one with another size or spec is found while the
  // program runs (FAILED_PRECONDITION, INVALID_ARGUMENT) instead of being undefined. Costs a table look-up per call.
  // Buffers are known by their address: one whose address cannot be told when it is freed is refused and stays in use,
  // also where a Buffer drops it; and beside one that had none when it was allocated, a second free may pass.
  // Unset: only where the library was built without optimisation or with AddressSanitizer.
  std::optional<bool> check_frees{};
};

// A consistent snapshot. Bytes are those taken from the inner record, so with size classes the rounded ones.
struct LruStats {
  std::uint64_t hits = 0;
  std::uint64_t misses = 0;        // allocations that went to the inner record (those it cannot keep included)
  std::uint64_t evictions = 0;     // buffers released because of max_bytes, those larger than it included
  std::uint64_t flushes = 0;       // times that buffers were released because memory was exhausted
  std::uint64_t failed_frees = 0;  // releases as side work (of cached buffers) that failed or threw
  std::size_t cached_bytes = 0;
  std::size_t cached_buffers = 0;
  std::size_t in_use_bytes = 0;  // external memory and empty buffers do not count
  std::size_t in_use_buffers = 0;
  std::size_t pinned_cached_bytes = 0;  // the part of cached_bytes with BufferSpec::host
  std::size_t pinned_in_use_bytes = 0;  // the part of in_use_bytes with BufferSpec::host
  std::size_t peak_in_use_bytes = 0;
  std::size_t peak_held_bytes = 0;  // in use + cached, after each operation
};

// What Find<LruControl> finds on a record or packed allocator with a cache. Keeps the cache alive. Thread-safe.
class LruControl {
 public:
  virtual ~LruControl() = default;
  virtual LruStats stats() const = 0;
  // Releases buffers, in the policy's order, until at most `keep_bytes` are cached. OK, or the code of the first
  // release that failed, with the number of those that did; what failed is not tried again, and everything else is
  // released all the same. What other threads free meanwhile may remain. FAILED_PRECONDITION where synchronize of the
  // inner record is (CUDA, while its stream is captured into a graph): nothing was released.
  virtual absl::Status Trim(std::size_t keep_bytes) = 0;
  // Trim(0), and gives back the memory of the tables too.
  virtual absl::Status Clear() = 0;
};

// A record (or packed allocator) like `record`, whose `free` keeps buffers and whose `alloc` serves them again, newest
// first, to a request of the same size class and spec. Buffers with `nolru`, `zero` or `external_ptr` pass through.
// Everything else of the record stays as it is.
//
// INVALID_ARGUMENT for a max_waste that is not from 0 to 1, and for a record that already contains Checked (put it
// outside: inside it would take cached buffers for leaked ones) or Fallback (give each of its two records a cache: one
// outside would serve the slower memory for ever). FAILED_PRECONDITION for an empty packed allocator.
//
// The result's alloc: what the inner alloc answers, except that on RESOURCE_EXHAUSTED it first synchronizes and
// releases cached buffers, at least as many bytes as asked for, then twice as many and so on, its own first and then
// those of other caches of the same AllocatorTraits::memory_domain, and waits for releases that other threads have
// under way; the error then names the bytes asked for, in use and cached. More bytes than traits.max_alloc_bytes
// are RESOURCE_EXHAUSTED at once. Its free: OK when the buffer is kept; else what the inner free answers. Errors of
// releases that make room do not reach the caller; they are counted.
//
// A free hands the buffer on while work on it may be pending, as the contract of `free` allows. Freeing twice is
// undefined as with std::free; see LruOptions::check_frees, Buffer and Checked. The last copy of the result (or
// Buffer from it, or LruControl) releases what is cached. Thread-safe, and usable in a forked child if the inner record
// is. LRU=0 in the environment, read when the layer is made, keeps nothing (tinygrad's switch).
absl::StatusOr<PackedAllocator> Lru(const PackedAllocator& packed, const LruOptions& options = {});
template <typename Buf>
absl::StatusOr<Allocator<Buf>> Lru(Allocator<Buf> record, const LruOptions& options = {});

// The layer itself, over boxed handles: for authors of layers.
absl::StatusOr<AnyRecord> LruLayer(AnyRecord inner, const LruOptions& options);

// ---- implementation ----

template <typename Buf>
absl::StatusOr<Allocator<Buf>> Lru(Allocator<Buf> record, const LruOptions& options) {
  return ApplyLayer(std::move(record), [&](AnyRecord inner) { return LruLayer(std::move(inner), options); });
}

}  // namespace packalloc

#endif  // PACKALLOC_LAYERS_LRU_H_
