// Many threads on CUDA records, on the strict fake driver: for ThreadSanitizer above all.
#include <doctest/doctest.h>

#include <atomic>
#include <string>
#include <thread>

#include "packalloc/layers/lru.h"
#include "packalloc/packed_allocator.h"
#include "test/backends/cuda_fake.h"

namespace cuda_test {
namespace {

using packalloc::AnyBuf;
using packalloc::PackedAllocator;

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

TEST_CASE("threads under a cache on a small device, another clears it, records come and go") {
  UnderEachSchedule(1, [](fake_cuda_schedule) {
    fake_cuda_set_capacity(0, std::size_t{2} << 20);
    const PackedAllocator cached = Must(packalloc::Lru(Must(packalloc::Pack(Open({.staging_slot_bytes = 16384})))));
    std::atomic<int> wrong{0};
    std::atomic<bool> done{false};
    std::thread clearer([&] {
      while (!done) {
        if (!packalloc::Find<packalloc::LruControl>(cached)->Clear().ok()) ++wrong;
        const absl::StatusOr<Allocator<CudaBuf>> passing = CudaAllocator();
        if (!passing.ok()) ++wrong;
        std::this_thread::yield();
      }
    });
    OnThreads([&](std::uint32_t id) {
      const std::size_t sizes[] = {512, 4096, 65536};
      std::vector<AnyBuf> held;
      const auto drop = [&](std::size_t i) {
        const std::size_t nbytes = held[i].nbytes();
        std::vector<std::byte> out(nbytes);
        if (!cached.copyout(absl::MakeSpan(out), held[i]).ok() || out != Pattern(nbytes, id)) ++wrong;
        if (!cached.free(held[i], nbytes).ok()) ++wrong;
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
      };
      for (std::uint32_t round = 0; round < 100; ++round) {
        if (held.size() == 6) drop(round % 6);
        const std::size_t nbytes = sizes[(round + id) % 3];
        absl::StatusOr<AnyBuf> buf = cached.alloc(nbytes);
        if (!buf.ok()) {
          if (buf.status().code() != absl::StatusCode::kResourceExhausted) ++wrong;
          continue;
        }
        if (!cached.copyin(*buf, Pattern(nbytes, id)).ok()) ++wrong;
        held.push_back(*buf);
      }
      while (!held.empty()) drop(0);
    });
    done = true;
    clearer.join();
    CHECK(wrong == 0);
    Must(packalloc::Find<packalloc::LruControl>(cached)->Clear());
    CHECK(packalloc::Find<packalloc::LruControl>(cached)->stats().cached_bytes == 0);
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
