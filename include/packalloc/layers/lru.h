// placeholder until the LRU layer lands; the options below are final
#ifndef PACKALLOC_LAYERS_LRU_H_
#define PACKALLOC_LAYERS_LRU_H_

#include <cstddef>
#include <cstdint>
#include <limits>

#include "absl/status/statusor.h"
#include "packalloc/allocator.h"
#include "packalloc/packed_allocator.h"

namespace packalloc {

enum class EvictionPolicy { kLru, kGreedyDualSize };

struct LruOptions {
  std::size_t max_bytes = std::numeric_limits<std::size_t>::max();  // cached bytes, strict
  EvictionPolicy policy = EvictionPolicy::kLru;
  double max_waste = 0;  // 0: exact sizes; else the part of a request that rounding may add, up to 1
};

struct LruStats {
  std::uint64_t hits = 0;
  std::uint64_t misses = 0;     // allocations that went to the inner record (those it cannot keep included)
  std::uint64_t evictions = 0;  // buffers released by the limit, one larger than the limit included
  std::uint64_t flushes = 0;    // reclaims because the inner record ran out of memory
  std::uint64_t failed_frees = 0;
  std::size_t cached_bytes = 0;
  std::size_t cached_buffers = 0;
  std::size_t in_use_bytes = 0;  // as taken from the inner record
  std::size_t in_use_buffers = 0;
  std::size_t peak_in_use_bytes = 0;
  std::size_t peak_held_bytes = 0;  // in use + cached
};

class LruControl {
 public:
  virtual ~LruControl() = default;
  virtual LruStats stats() const = 0;
  virtual absl::Status Trim(std::size_t keep_bytes) = 0;
  virtual absl::Status Clear() = 0;
};

template <typename Buf>
absl::StatusOr<Allocator<Buf>> Lru(Allocator<Buf> record, const LruOptions& options = {});
absl::StatusOr<PackedAllocator> Lru(const PackedAllocator& packed, const LruOptions& options = {});

}  // namespace packalloc

#endif  // PACKALLOC_LAYERS_LRU_H_
