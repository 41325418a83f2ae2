// Many threads on CUDA records, on the strict fake driver: for ThreadSanitizer above all.
#include <doctest/doctest.h>

#include <atomic>
#include <string>
#include <thread>

#include "test/backends/cuda_fake.h"

namespace cuda_test {
namespace {

constexpr int kThreads = 4;

template <typename Body>
void OnThreads(Body body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(body, static_cast<std::uint32_t>(i));
  for (std::thread& thread : threads) thread.join();
}

TEST_CASE("threads share a record: each finds its own bytes, whatever they wait for each other in the ring") {
  UnderEachSchedule(1, [](fake_cuda_schedule) {
    const Allocator<CudaBuf> cuda = Open({.staging_slot_bytes = 4096, .staging_slots = 2});
    std::atomic<int> wrong{0};
    OnThreads([&](std::uint32_t id) {
      for (std::uint32_t round = 0; round < 40; ++round) {
        const std::size_t nbytes = 1000 + 3000 * (round % 7) + id;
        const std::vector<std::byte> in = Pattern(nbytes, id * 100 + round);
        std::vector<std::byte> out(nbytes);
        const absl::StatusOr<CudaBuf> a = cuda.alloc(nbytes, {});
        const absl::StatusOr<CudaBuf> b = cuda.alloc(nbytes, {.host = round % 2 == 0});
        const bool ok = a.ok() && b.ok() && cuda.copyin(*a, in).ok() && cuda.transfer(*b, *a, nbytes).ok() &&
                        cuda.copyout(absl::MakeSpan(out), *b).ok() && out == in && cuda.free(*a, nbytes, {}).ok() &&
                        cuda.free(*b, nbytes, {.host = round % 2 == 0}).ok();
        if (!ok) ++wrong;
      }
    });
    CHECK(wrong == 0);
    CHECK(packalloc::Find<packalloc::CudaNative>(cuda)->stats().staging_slots <= 2);
  });
}

TEST_CASE("threads transfer both ways between two devices") {
  for (const int reachable : {0, 1}) {
    UnderEachSchedule(2, [&](fake_cuda_schedule) {
      fake_cuda_set_peer(0, 1, reachable);
      fake_cuda_set_peer(1, 0, reachable);
      const Allocator<CudaBuf> one = Open({.staging_slot_bytes = 4096, .staging_slots = 2});
      const Allocator<CudaBuf> two = Open({.device = 1, .staging_slot_bytes = 4096, .staging_slots = 2});
      std::atomic<int> wrong{0};
      OnThreads([&](std::uint32_t id) {
        const Allocator<CudaBuf>& from = id % 2 == 0 ? one : two;
        const Allocator<CudaBuf>& to = id % 2 == 0 ? two : one;
        for (std::uint32_t round = 0; round < 20; ++round) {
          const std::size_t nbytes = 10'000 + id;
          const std::vector<std::byte> in = Pattern(nbytes, id * 100 + round);
          std::vector<std::byte> out(nbytes);
          const absl::StatusOr<CudaBuf> a = from.alloc(nbytes, {});
          const absl::StatusOr<CudaBuf> b = to.alloc(nbytes, {});
          const bool ok = a.ok() && b.ok() && from.copyin(*a, in).ok() && to.transfer(*b, *a, nbytes).ok() &&
                          from.free(*a, nbytes, {}).ok() && to.copyout(absl::MakeSpan(out), *b).ok() && out == in &&
                          to.free(*b, nbytes, {}).ok();
          if (!ok) ++wrong;
        }
      });
      CHECK(wrong == 0);
    });
  }
}

}  // namespace
}  // namespace cuda_test
