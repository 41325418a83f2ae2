#include <atomic>
#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/bars.h"
#include "bench/measure.h"
#include "bench/pairs.h"
#include "packalloc/backends/null.h"
#include "packalloc/packed_allocator.h"

namespace packalloc::bench {
namespace {

constexpr std::size_t kPairsPerRound = 100000;

// glibc's malloc is cheaper in a process that has never started a thread; a program that runs tensors has.
void StartAThread() {
  std::thread([] {}).join();
}

// Seconds until each of `workers` has made its pairs, all beginning together.
double ParallelSeconds(const std::vector<std::function<void()>>& workers) {
  std::atomic<std::size_t> waiting{workers.size() + 1};
  const auto wait_for_all = [&waiting] {
    --waiting;
    while (waiting.load() != 0) std::this_thread::yield();
  };
  std::vector<std::thread> threads;
  for (const std::function<void()>& work : workers) {
    threads.emplace_back([&wait_for_all, &work] {
      wait_for_all();
      work();
    });
  }
  wait_for_all();
  return WallSeconds([&threads] {
    for (std::thread& thread : threads) thread.join();
  });
}

// How much more two workers get done at a time than one.
double Scaling(const std::function<void()>& first, const std::function<void()>& second) {
  const double alone = ParallelSeconds({first});
  return 2 * alone / ParallelSeconds({first, second});
}

}  // namespace

Bar PackedOverRecord() {
  return {"packed_over_record", "packed alloc + free on NULL over the bare record's", 1.7, Bar::Kind::kAtMost,
          []() -> absl::StatusOr<double> {
            const Allocator<void*> record = NullAllocator();
            const PackedAllocator packed = *Pack(NullAllocator());
            return MedianRatio(
                {.rounds = 61}, [&packed] { Pairs(packed, kPairsPerRound); },
                [&record] { Pairs(record, kPairsPerRound); });
          }};
}

Bar LruHitOverMalloc() {
  return {"lru_hit_over_malloc", "LRU hit (alloc + free of 64 KiB, 64 classes in use, packed) over malloc + free", 0.75,
          Bar::Kind::kAtMost, []() -> absl::StatusOr<double> {
            StartAThread();
            const PackedAllocator cache = CacheWith64Classes();
            return MedianRatio(
                {.rounds = 61}, [&cache] { Pairs(cache, kPairsPerRound); }, [] { MallocPairs(kPairsPerRound); });
          }};
}

Bar LruTwoThreadScaling() {
  return {"lru_two_thread_scaling",
          "LRU hits on two threads over one, relative to two NULL allocators that share nothing", 0.9,
          Bar::Kind::kAtLeast, []() -> absl::StatusOr<double> {
            const PackedAllocator cache = CacheWith64Classes();
            const PackedAllocator a = *Pack(NullAllocator());
            const PackedAllocator b = *Pack(NullAllocator());
            constexpr std::size_t kPairs = 4 * kPairsPerRound;
            const auto hit = [&cache] { Pairs(cache, kPairs); };
            return MedianRatioOfTimes(
                {.rounds = 31}, [&] { return Scaling(hit, hit); },
                [&] { return Scaling([&a] { Pairs(a, kPairs); }, [&b] { Pairs(b, kPairs); }); });
          }};
}

}  // namespace packalloc::bench
