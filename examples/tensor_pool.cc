// The code of docs/tensor_pool.md.
#include "packalloc/tensor/tensor_pool.h"

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "packalloc/registry.h"

namespace {

int failures = 0;
void Expect(bool condition, const char* what) {
  if (condition) return;
  std::printf("not true: %s\n", what);
  ++failures;
}

absl::Status Steps() {
  // [snippet steps]
  absl::StatusOr<packalloc::PackedAllocator> device = packalloc::Open("CPU");
  if (!device.ok()) return device.status();
  absl::StatusOr<packalloc::TensorPool> pool =
      packalloc::TensorPool::Make(*device, {.max_cached_bytes = std::size_t{1} << 30});
  if (!pool.ok()) return pool.status();

  for (int step = 0; step < 100; ++step) {
    const std::int64_t batch = 60 + step % 5;  // shapes that keep changing
    absl::StatusOr<packalloc::Tensor> activations = pool->Empty({batch, 16}, packalloc::kFloat32);
    if (!activations.ok()) return activations.status();
    // ... a kernel works on activations->data() ...
  }  // and here the tensor goes back to the pool
  // [/snippet steps]
  Expect(pool->cache()->stats().misses == 1, "one backing served all steps");
  Expect(pool->UsedMemory() == 4096, "one page");

  // [snippet views]
  absl::StatusOr<packalloc::Tensor> both = pool->Empty({2, 1000}, packalloc::kFloat32);
  if (!both.ok()) return both.status();
  // The second row. It holds the memory too, so `both` may go first.
  absl::StatusOr<packalloc::Tensor> second = pool->CreateView(*both, {1000}, packalloc::kFloat32, 4000);
  if (!second.ok()) return second.status();
  // [/snippet views]
  Expect(second->data().value == both->data().value + 4000, "the second row");

  // [snippet trim]
  const packalloc::LruStats stats = pool->cache()->stats();
  std::printf("%zu bytes in use, %zu cached, %llu hits\n", stats.in_use_bytes, stats.cached_bytes,
              static_cast<unsigned long long>(stats.hits));
  if (absl::Status trimmed = pool->cache()->Trim(std::size_t{64} << 20); !trimmed.ok()) return trimmed;
  if (absl::Status cleared = pool->Clear(); !cleared.ok()) return cleared;
  // [/snippet trim]
  Expect(pool->UsedMemory() == 8192, "what `both` has");
  return absl::OkStatus();
}

absl::Status Replace(const packalloc::PackedAllocator& device) {
  // [snippet replace]
  std::size_t fresh_bytes = 0;
  packalloc::TensorPoolOptions options;
  options.replace = [&fresh_bytes](packalloc::TensorPoolFunctions own) {
    packalloc::TensorPoolFunctions used = own;
    used.alloc_backing = [&fresh_bytes, next = own.alloc_backing](std::size_t nbytes, std::size_t alignment,
                                                                  packalloc::DlDevice on) {
      fresh_bytes += nbytes;
      return next(nbytes, alignment, on);
    };
    return used;
  };
  absl::StatusOr<packalloc::TensorPool> pool = packalloc::TensorPool::Make(device, options);
  // [/snippet replace]
  if (!pool.ok()) return pool.status();
  Expect(pool->Empty({10}, packalloc::kFloat32).ok(), "a tensor");
  Expect(fresh_bytes == 4096, "the replacement was asked");
  return absl::OkStatus();
}

absl::Status Devices(const packalloc::PackedAllocator& cpu, const packalloc::PackedAllocator& accelerator) {
  // [snippet devices]
  const packalloc::DlDevice host{packalloc::DlDevice::kCpu};
  const packalloc::DlDevice npu{packalloc::DlDevice::kExtDev, 0};  // what the allocator's name does not tell
  absl::StatusOr<packalloc::TensorPool> pool =
      packalloc::TensorPool::Make(std::vector<packalloc::TensorPoolDevice>{{host, cpu}, {npu, accelerator}});
  if (!pool.ok()) return pool.status();
  absl::StatusOr<packalloc::Tensor> weights = pool->Empty({1 << 20}, packalloc::kBfloat16, npu);
  // [/snippet devices]
  Expect(weights.ok() && weights->device() == npu, "on the second device");
  return absl::OkStatus();
}

}  // namespace

int main() {
  for (const absl::Status& done :
       {Steps(), Replace(*packalloc::Open("CPU")), Devices(*packalloc::Open("CPU"), *packalloc::Open("NULL"))}) {
    if (!done.ok()) {
      std::printf("%s\n", done.ToString().c_str());
      ++failures;
    }
  }
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
