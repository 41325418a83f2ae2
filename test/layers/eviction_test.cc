#include "lib/layers/eviction.h"

#include <doctest/doctest.h>

#include <deque>
#include <map>
#include <random>

namespace packalloc {
namespace {

// Against the plain way: look at every buffer.
void Compare(EvictionPolicy policy, unsigned seed) {
  CAPTURE(seed);
  constexpr std::uint32_t kKeys = 20;
  std::mt19937 random(seed);
  EvictionOrder order(policy);
  order.Reserve(kKeys);
  std::map<std::uint32_t, std::deque<Priority>> buffers;  // per key, oldest first
  std::map<std::uint32_t, bool> queued;
  double clock = 0;
  const auto size_of = [](std::uint32_t key) { return std::size_t{1} << key; };
  const auto oldest = [&](std::uint32_t key) -> std::optional<Priority> {
    if (!buffers[key].empty()) return buffers[key].front();
    queued[key] = false;
    return std::nullopt;
  };
  for (std::uint64_t stamp = 1; stamp < 5000; ++stamp) {
    const std::uint32_t key = random() % kKeys;
    switch (random() % 5) {
      case 0:
      case 1: {  // keep a buffer
        const Priority p = order.PriorityOf(order.WeightOf(size_of(key)), stamp);
        CHECK(p.rank == (policy == EvictionPolicy::kLru ? 0 : clock + 1.0 / static_cast<double>(size_of(key))));
        buffers[key].push_back(p);
        if (!queued[key]) order.Add(key, p);
        queued[key] = true;
        break;
      }
      case 2:
      case 3:  // reuse the newest
        if (!buffers[key].empty()) buffers[key].pop_back();
        break;
      default: {  // evict
        std::optional<std::pair<Priority, std::uint32_t>> expected;
        for (const auto& [k, list] : buffers) {
          for (const Priority& p : list) {
            if (!expected || p < expected->first) expected = {p, k};
          }
        }
        const std::optional<EvictionOrder::Candidate> got = order.Lowest(oldest);
        REQUIRE(got.has_value() == expected.has_value());
        if (!got) break;
        CHECK(got->key == expected->second);
        CHECK(got->priority.stamp == expected->first.stamp);
        buffers[got->key].pop_front();
        order.Advance(got->priority.rank);
        clock = std::max(clock, got->priority.rank);
      }
    }
    REQUIRE(order.size() <= kKeys);
  }
}

TEST_CASE("evicts what a look at every buffer would") {
  const unsigned seed = std::random_device()();
  for (unsigned i = 0; i < 10; ++i) {
    Compare(EvictionPolicy::kLru, seed + i);
    Compare(EvictionPolicy::kGreedyDualSize, seed + i);
  }
}

TEST_CASE("greedy-dual-size: large buffers first, small ones when they have not been used for long") {
  EvictionOrder order(EvictionPolicy::kGreedyDualSize);
  std::map<std::uint32_t, Priority> first;
  const auto oldest = [&](std::uint32_t key) { return std::optional(first[key]); };
  first[0] = order.PriorityOf(order.WeightOf(10), 1);
  first[1] = order.PriorityOf(order.WeightOf(1000), 2);
  order.Add(0, first[0]);
  order.Add(1, first[1]);
  CHECK(order.Lowest(oldest)->key == 1);
  for (std::uint64_t stamp = 3; order.Lowest(oldest)->key == 1; ++stamp) {
    REQUIRE(stamp < 1000);
    order.Advance(first[1].rank);
    first[1] = order.PriorityOf(order.WeightOf(1000), stamp);
  }
  CHECK(order.Lowest(oldest)->key == 0);
}

}  // namespace
}  // namespace packalloc
