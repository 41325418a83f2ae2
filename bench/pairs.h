// The loops that the benchmarks of allocation share: pairs of one alloc and one free.
#ifndef PACKALLOC_BENCH_PAIRS_H_
#define PACKALLOC_BENCH_PAIRS_H_

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdlib>
#include <utility>
#include <vector>

#include "packalloc/backends/null.h"
#include "packalloc/layers/lru.h"
#include "packalloc/packed_allocator.h"

namespace packalloc::bench {

inline constexpr std::size_t kPairBytes = std::size_t{64} << 10;

// On a record or a packed allocator. Inline in either case, so that neither loop has a call more. Errors end the
// program: a benchmark of failing calls says nothing.
template <typename Device>
[[gnu::always_inline]] inline void Pair(const Device& device, std::size_t nbytes, const BufferSpec& spec) {
  auto buf = device.alloc(nbytes, spec);
  if (!buf.ok()) std::abort();
  benchmark::DoNotOptimize(*buf);
  if (!device.free(*buf, nbytes, spec).ok()) std::abort();
}

template <typename Device>
void Pairs(const Device& device, std::size_t count, std::size_t nbytes = kPairBytes) {
  const BufferSpec spec;
  for (std::size_t i = 0; i < count; ++i) Pair(device, nbytes, spec);
}

inline void MallocPairs(std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    void* block = std::malloc(kPairBytes);
    benchmark::DoNotOptimize(block);
    std::free(block);
  }
}

// A cache over NULL that holds a free buffer in each of 64 sizes, kPairBytes among them.
inline PackedAllocator CacheWith64Classes() {
  PackedAllocator cache = *Lru(*Pack(NullAllocator()));
  std::vector<std::pair<AnyBuf, std::size_t>> live;
  for (std::size_t i = 0; i < 64; ++i) {
    const std::size_t nbytes = kPairBytes + i * 4096;
    live.emplace_back(*cache.alloc(nbytes), nbytes);
  }
  for (const auto& [buf, nbytes] : live) cache.free(buf, nbytes).IgnoreError();
  return cache;
}

}  // namespace packalloc::bench

#endif  // PACKALLOC_BENCH_PAIRS_H_
