// What a pair of alloc and free costs: bare record, packed, under the cache, malloc; and on several threads.
#include <benchmark/benchmark.h>

#include <cstddef>

#include "bench/pairs.h"
#include "packalloc/backends/cpu.h"
#include "packalloc/backends/null.h"
#include "packalloc/buffer.h"
#include "packalloc/packed_allocator.h"

namespace packalloc::bench {
namespace {

template <typename Device>
void Run(benchmark::State& state, const Device& device) {
  const auto nbytes = static_cast<std::size_t>(state.range(0));
  const BufferSpec spec;
  for (auto _ : state) Pair(device, nbytes, spec);
}

void NullRecord(benchmark::State& state) { Run(state, NullAllocator()); }
void NullPacked(benchmark::State& state) { Run(state, *Pack(NullAllocator())); }
void CpuRecord(benchmark::State& state) { Run(state, CpuAllocator()); }
void CpuPacked(benchmark::State& state) { Run(state, *Pack(CpuAllocator())); }
void CpuUnderLru(benchmark::State& state) { Run(state, *Lru(*Pack(CpuAllocator()))); }

void LruHit(benchmark::State& state) {
  static const PackedAllocator& cache = *new PackedAllocator(CacheWith64Classes());  // shared by the threads
  Run(state, cache);
}

void Malloc(benchmark::State& state) {
  for (auto _ : state) {
    void* block = std::malloc(static_cast<std::size_t>(state.range(0)));
    benchmark::DoNotOptimize(block);
    std::free(block);
  }
}

void BufferPair(benchmark::State& state) {
  const PackedAllocator null = *Pack(NullAllocator());
  for (auto _ : state) {
    const Buffer buffer(null, static_cast<std::size_t>(state.range(0)));
    if (!buffer.Allocate().ok()) state.SkipWithError("alloc failed");
  }
}

BENCHMARK(NullRecord)->Arg(kPairBytes);
BENCHMARK(NullPacked)->Arg(kPairBytes);
BENCHMARK(BufferPair)->Arg(kPairBytes);
BENCHMARK(LruHit)->Arg(kPairBytes)->ThreadRange(1, 4)->UseRealTime();
BENCHMARK(Malloc)->Arg(256)->Arg(kPairBytes)->Arg(4 << 20);
BENCHMARK(CpuRecord)->Arg(256)->Arg(kPairBytes)->Arg(4 << 20);
BENCHMARK(CpuPacked)->Arg(256)->Arg(kPairBytes)->Arg(4 << 20);
BENCHMARK(CpuUnderLru)->Arg(256)->Arg(kPairBytes)->Arg(4 << 20);

}  // namespace
}  // namespace packalloc::bench

BENCHMARK_MAIN();
