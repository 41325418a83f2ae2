#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdlib>

#include "absl/status/statusor.h"
#include "bench/bars.h"
#include "bench/measure.h"
#include "bench/pairs.h"
#include "packalloc/backends/null.h"
#include "packalloc/layers/lru.h"
#include "packalloc/packed_allocator.h"
#include "packalloc/tensor/tensor_pool.h"

namespace packalloc::bench {
namespace {

constexpr std::size_t kPairsPerRound = 50000;

// Tensors of kPairBytes, made and dropped.
void Tensors(const TensorPool& pool, std::size_t count) {
  constexpr std::int64_t kShape[] = {16, kPairBytes / (16 * sizeof(float))};
  for (std::size_t i = 0; i < count; ++i) {
    absl::StatusOr<Tensor> tensor = pool.Empty(kShape, kFloat32);
    if (!tensor.ok()) std::abort();
    benchmark::DoNotOptimize(*tensor);
  }
}

}  // namespace

Bar TensorPoolEmptyOverLru() {
  return {"tensor_pool_empty_over_lru", "TensorPool hit (Empty of 64 KiB, dropped) over an LRU hit (alloc + free)", 2.0,
          Bar::Kind::kAtMost, []() -> absl::StatusOr<double> {
            const PackedAllocator cache = *Lru(*Pack(NullAllocator()));
            const TensorPool pool = *TensorPool::Make({{DlDevice{DlDevice::kExtDev}, *Pack(NullAllocator())}});
            return MedianRatio(
                {.rounds = 61}, [&pool] { Tensors(pool, kPairsPerRound); }, [&cache] { Pairs(cache, kPairsPerRound); });
          }};
}

}  // namespace packalloc::bench
