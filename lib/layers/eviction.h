// The cache's policy: which key gives up its oldest buffer next. Knows no buffers and no locks.
#ifndef PACKALLOC_LIB_LAYERS_EVICTION_H_
#define PACKALLOC_LIB_LAYERS_EVICTION_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "packalloc/layers/lru.h"

namespace packalloc {

// The lowest goes first. `stamp` counts uses; `rank` is 0 under kLru, so that only the stamp decides.
struct Priority {
  double rank = 0;
  std::uint64_t stamp = 0;
  friend bool operator<(const Priority& a, const Priority& b) {
    return a.rank != b.rank ? a.rank < b.rank : a.stamp < b.stamp;
  }
};

// A lazy heap of keys (small numbers that the caller chooses). A key is in it at most once, with a priority that is no
// higher than that of its oldest buffer: true for ever once it was, because within one key priorities only grow and the
// newest buffer is reused first. So reuse does not touch the heap; what is out of date is put right when it surfaces.
class EvictionOrder {
 public:
  struct Candidate {
    std::uint32_t key;
    Priority priority;
  };

  explicit EvictionOrder(EvictionPolicy policy) : policy_(policy) {}

  // What buffers of `nbytes` rank above the clock. Greedy-dual-size with every miss at the same cost: cost / size.
  double WeightOf(std::size_t nbytes) const {
    return policy_ == EvictionPolicy::kLru ? 0 : 1 / static_cast<double>(nbytes);
  }
  Priority PriorityOf(double weight, std::uint64_t stamp) const { return {clock_ + weight, stamp}; }

  // Makes room for `keys` keys, after which Add does not allocate. May throw std::bad_alloc, and changes nothing then.
  void Reserve(std::size_t keys) { heap_.reserve(keys); }
  // `key` is not in the heap.
  void Add(std::uint32_t key, Priority priority) {
    heap_.push_back({key, priority});
    std::push_heap(heap_.begin(), heap_.end(), LaterFirst);
  }
  void Clear() { heap_.clear(); }
  std::size_t size() const { return heap_.size(); }

  // The key whose oldest buffer goes next. `oldest(key)` gives the priority of that buffer, or nullopt where the key
  // has none: then the key leaves the heap, and the caller adds it again when it has one.
  template <typename Oldest>
  std::optional<Candidate> Lowest(Oldest oldest) {
    while (!heap_.empty()) {
      const Candidate top = heap_.front();
      const std::optional<Priority> real = oldest(top.key);
      if (real && !(top.priority < *real)) return top;
      std::pop_heap(heap_.begin(), heap_.end(), LaterFirst);
      if (real) {
        heap_.back().priority = *real;
        std::push_heap(heap_.begin(), heap_.end(), LaterFirst);
      } else {
        heap_.pop_back();
      }
    }
    return std::nullopt;
  }

  // Sets the clock to the rank of a buffer that was evicted: what is used from now on ranks above it.
  void Advance(double rank) { clock_ = std::max(clock_, rank); }
  double clock() const { return clock_; }

 private:
  static bool LaterFirst(const Candidate& a, const Candidate& b) { return b.priority < a.priority; }

  EvictionPolicy policy_;
  double clock_ = 0;
  std::vector<Candidate> heap_;
};

}  // namespace packalloc

#endif  // PACKALLOC_LIB_LAYERS_EVICTION_H_
