// CPU copies against memcpy, and the first touch of a fresh buffer with huge pages and without.
#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "packalloc/backends/cpu.h"
#include "packalloc/packed_allocator.h"

namespace packalloc::bench {
namespace {

struct Copies {
  explicit Copies(std::size_t nbytes) : host(nbytes, std::byte{1}), buf(*cpu.alloc(nbytes)) {
    cpu.copyin(buf, host).IgnoreError();
  }
  ~Copies() { cpu.free(buf, host.size()).IgnoreError(); }

  PackedAllocator cpu = *Pack(CpuAllocator());
  std::vector<std::byte> host;
  AnyBuf buf;
};

template <typename Copy>
void Run(benchmark::State& state, Copy copy) {
  Copies copies(static_cast<std::size_t>(state.range(0)));
  for (auto _ : state) {
    copy(copies);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

void CopyIn(benchmark::State& state) {
  Run(state, [](Copies& c) { c.cpu.copyin(c.buf, c.host).IgnoreError(); });
}
void CopyOut(benchmark::State& state) {
  Run(state, [](Copies& c) { c.cpu.copyout(absl::MakeSpan(c.host), c.buf).IgnoreError(); });
}
void Memcpy(benchmark::State& state) {
  Run(state, [](Copies& c) { std::memcpy(c.buf.get<CpuBuf>()->data, c.host.data(), c.host.size()); });
}

void Touch(benchmark::State& state, std::byte* data) {
  for (std::size_t i = 0; i < static_cast<std::size_t>(state.range(0)); i += 4096) data[i] = std::byte{1};
  benchmark::ClobberMemory();
}

void FirstTouch(benchmark::State& state, bool huge_pages) {
  const auto nbytes = static_cast<std::size_t>(state.range(0));
  const Allocator<CpuBuf> cpu = CpuAllocator({.huge_pages = huge_pages});
  for (auto _ : state) {
    const CpuBuf buf = *cpu.alloc(nbytes, {});
    Touch(state, buf.data);
    cpu.free(buf, nbytes, {}).IgnoreError();
  }
}
void FirstTouchMalloc(benchmark::State& state) {
  for (auto _ : state) {
    void* block = std::malloc(static_cast<std::size_t>(state.range(0)));
    Touch(state, static_cast<std::byte*>(block));
    std::free(block);
  }
}

BENCHMARK(CopyIn)->RangeMultiplier(8)->Range(64, 64 << 20);
BENCHMARK(CopyOut)->RangeMultiplier(8)->Range(64, 64 << 20);
BENCHMARK(Memcpy)->RangeMultiplier(8)->Range(64, 64 << 20);
BENCHMARK_CAPTURE(FirstTouch, huge_pages, true)->Arg(2 << 20)->Arg(64 << 20);
BENCHMARK_CAPTURE(FirstTouch, small_pages, false)->Arg(2 << 20)->Arg(64 << 20);
BENCHMARK(FirstTouchMalloc)->Arg(2 << 20)->Arg(64 << 20);

}  // namespace
}  // namespace packalloc::bench

BENCHMARK_MAIN();
