// Objects of TVM-FFI from a PackedAllocator: where they lie, what is counted, when memory goes back, threads.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "lib/interop/slab_pool.h"
#include "packalloc/backends/cpu.h"
#include "packalloc/backends/mock.h"
#include "packalloc/interop/tvm_ffi.h"
#include "packalloc/packed_allocator.h"
#include "test/in_child.h"
#include "test/interop/fake_tvm_ffi/fake_tvm_ffi.h"
#include "test/interop/installed_objects.h"
#include "test/sanitizers.h"

namespace packalloc {
namespace {

constexpr std::int32_t kNode = 200;

void Drop(void* object) { REQUIRE(TVMFFIObjectDecRef(object) == 0); }

void DropAll(std::vector<void*>& objects) {
  for (void* object : objects) Drop(object);
  objects.clear();
}

TEST_CASE("an object is made, counted and dropped; the one allocator's delete_space serves both ends") {
  Installed s;
  void* object = FakeTvmFfiMake(48, 8, kNode);
  REQUIRE(object != nullptr);
  const auto delete_space = static_cast<tvm_ffi_abi::ObjectAllocHeader*>(object)[-1].delete_space;
  REQUIRE((delete_space != nullptr));
  void* second = FakeTvmFfiMake(48, 8, 64);
  CHECK((static_cast<tvm_ffi_abi::ObjectAllocHeader*>(second)[-1].delete_space == delete_space));

  TvmFfiObjectStats stats = s.objects.stats();
  CHECK(stats.allocations == 2);
  CHECK(stats.live == 2);
  CHECK(stats.live_bytes == 2 * 64);
  CHECK(stats.slabs == 1);
  REQUIRE(stats.types.size() == 2);
  CHECK(stats.types[0].type_index == 64);
  CHECK(stats.types[1].type_index == kNode);
  CHECK(stats.types[1].live == 1);
  CHECK(stats.types[1].live_bytes == 64);
  CHECK(s.objects.LeakReport() ==
        "1 object of type 64 (ffi.Object) holds 64 bytes\n1 object of type 200 (test.Node) holds 64 bytes\n");
  Drop(object);
  CHECK(s.objects.LeakReport() == "1 object of type 64 (ffi.Object) holds 64 bytes\n");
  Drop(second);
  stats = s.objects.stats();
  CHECK(stats.allocations == 2);
  CHECK(stats.live == 0);
  CHECK(stats.types.size() == 2);
  CHECK(stats.malloc_allocations == 0);
  CHECK(stats.failed_allocations == 0);
}

TEST_CASE("types are counted apart, also those with large and negative indices") {
  Installed s;
  std::vector<void*> objects;
  const std::map<std::int32_t, int> wanted = {{0, 1}, {63, 2}, {64, 3}, {8191, 4}, {8192, 5}, {1 << 30, 6}, {-7, 7}};
  for (const auto& [type_index, count] : wanted) {
    for (int i = 0; i < count; ++i) objects.push_back(FakeTvmFfiMake(40, 8, type_index));
  }
  std::map<std::int32_t, int> found;
  for (const TvmFfiTypeStats& type : s.objects.stats().types) found[type.type_index] = static_cast<int>(type.live);
  CHECK(found == std::map<std::int32_t, int>{{-1, 5 + 6 + 7}, {0, 1}, {63, 2}, {64, 3}, {8191, 4}});
  DropAll(objects);
}

TEST_CASE("every size and alignment has bytes of its own, as aligned as asked") {
  Installed s;
  struct Made {
    void* body;
    std::size_t size;
  };
  std::vector<Made> all;
  std::vector<std::size_t> sizes = {0, 1, 24, 4079, 4080, 4081, 65535, 65536, 1 << 20};
  for (std::size_t size = 24; size < 4200; size += 13) sizes.push_back(size);
  for (const std::size_t size : sizes) {
    for (const std::size_t alignment : {std::size_t{0}, std::size_t{1}, std::size_t{8}, alignof(std::max_align_t),
                                        std::size_t{32}, std::size_t{64}, std::size_t{4096}, std::size_t{65536}}) {
      if (alignment >= 4096 && size % 5 != 0) continue;
      void* body = FakeTvmFfiMake(size, alignment, kNode);
      CAPTURE(size);
      CAPTURE(alignment);
      REQUIRE(body != nullptr);
      if (alignment != 0) CHECK(reinterpret_cast<std::uintptr_t>(body) % alignment == 0);
      std::memset(body, static_cast<int>(all.size() % 251), size);
      all.push_back({body, size});
    }
  }
  CHECK(s.objects.stats().malloc_allocations == 0);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto* bytes = static_cast<const unsigned char*>(all[i].body);
    bool own = true;
    for (std::size_t j = 0; j < all[i].size; ++j) own = own && bytes[j] == i % 251;
    CHECK(own);
    static_cast<tvm_ffi_abi::ObjectAllocHeader*>(all[i].body)[-1].delete_space(all[i].body);
  }
}

TEST_CASE("size classes: the smallest that is large enough, at most a quarter too large from 256 bytes on") {
  using internal::kBlockBytes;
  for (std::size_t bytes = 1; bytes <= internal::kLargestBlock; ++bytes) {
    const std::size_t block_class = internal::BlockClassOf(bytes);
    REQUIRE(block_class < internal::kBlockClasses);
    CHECK(kBlockBytes[block_class] >= bytes);
    CHECK((block_class == 0 || kBlockBytes[block_class - 1] < bytes));
    CHECK(kBlockBytes[block_class] - bytes <= std::max<std::size_t>(15, bytes / 4));
    CHECK(kBlockBytes[block_class] % 16 == 0);
  }
}

TEST_CASE("blocks are used again, and slabs that nobody uses go back by themselves, but for one of each size") {
  Installed s;
  std::vector<void*> objects;
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 20000; ++i) objects.push_back(FakeTvmFfiMake(48, 8, kNode));
    CHECK(s.objects.stats().slabs >= 20);
    CHECK(s.mock->live_blocks() <= 21);
    DropAll(objects);
    CHECK(s.objects.stats().slabs <= 8);  // one in reserve, and those in which this thread keeps blocks
  }
  for (int i = 0; i < 100000; ++i) Drop(FakeTvmFfiMake(48, 8, kNode));
  CHECK(s.objects.stats().slabs <= 8);
}

TEST_CASE("the probe tells a library that asks the allocator from one that does not") {
  Installed s;
  const absl::StatusOr<bool> live = s.objects.Probe();
  REQUIRE(live.ok());
  CHECK(*live);
  CHECK(s.objects.stats().allocations == 1);
  FakeTvmFfiSetLive(false);
  const absl::StatusOr<bool> dormant = s.objects.Probe();
  FakeTvmFfiSetLive(true);
  REQUIRE(dormant.ok());
  CHECK_FALSE(*dormant);
  CHECK(s.objects.stats().allocations == 1);
}

TEST_CASE("uninstalling gives the one before its place back, in order; objects outlive it") {
  tvm_ffi_abi::CustomAllocator* const at_first = TVMFFIGetCustomAllocator();
  Installed a;
  tvm_ffi_abi::CustomAllocator* const of_a = TVMFFIGetCustomAllocator();
  CHECK(of_a != at_first);
  void* from_a = FakeTvmFfiMake(48, 8, kNode);
  void* large_from_a = FakeTvmFfiMake(48000, 8, kNode);
  {
    Installed b;
    void* from_b = FakeTvmFfiMake(48, 8, kNode);
    CHECK(a.objects.stats().live == 2);
    CHECK(b.objects.stats().live == 1);
    const absl::Status too_early = a.objects.Uninstall();
    CHECK(too_early.code() == absl::StatusCode::kFailedPrecondition);
    CHECK(too_early.message().find("by the handle that its installation gave") != absl::string_view::npos);
    Drop(from_a);  // while another one is installed
    Drop(from_b);
  }
  CHECK(TVMFFIGetCustomAllocator() == of_a);
  CHECK(a.objects.Uninstall().ok());
  CHECK(TVMFFIGetCustomAllocator() == at_first);
  CHECK(a.objects.Uninstall().code() == absl::StatusCode::kFailedPrecondition);
  Drop(FakeTvmFfiMake(48, 8, kNode));
  CHECK(a.objects.stats().allocations == 2);
  CHECK(a.objects.stats().live == 1);
  Drop(large_from_a);
  CHECK(a.objects.stats().live == 0);
  a.installed = false;
}

TEST_CASE("objects dropped on other threads than their own, in every order") {
  Installed s;
  const unsigned seed = std::random_device{}();
  CAPTURE(seed);
  constexpr int kThreads = 4;
  constexpr int kRounds = 6000;
  std::mutex mutex;
  std::vector<void*> shared;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(seed + t);
      std::vector<void*> own;
      for (int i = 0; i < kRounds; ++i) {
        const std::size_t size = random() % 50 == 0 ? 5000 + random() % 5000 : 24 + random() % 400;
        own.push_back(FakeTvmFfiMake(size, 8, static_cast<std::int32_t>(kNode + random() % 4)));
        if (own.size() < 40) continue;
        {
          const std::lock_guard lock(mutex);
          own.swap(shared);
        }
        for (std::size_t n = random() % 40; n > 0 && !own.empty(); --n) {
          Drop(own.back());
          own.pop_back();
        }
      }
      DropAll(own);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(s.objects.stats().live == shared.size());
  DropAll(shared);
  CHECK(s.objects.stats().allocations == kThreads * kRounds);
}

TEST_CASE("a producer's objects are dropped by a consumer without memory growing") {
  Installed s;
  constexpr int kObjects = 50000;
  std::atomic<void*> slot{nullptr};
  std::thread consumer([&] {
    for (int i = 0; i < kObjects; ++i) {
      void* object = nullptr;
      while ((object = slot.exchange(nullptr)) == nullptr) std::this_thread::yield();
      TVMFFIObjectDecRef(object);
    }
  });
  std::size_t most = 0;
  for (int i = 0; i < kObjects; ++i) {
    void* object = FakeTvmFfiMake(100, 8, kNode);
    while (slot.load() != nullptr) std::this_thread::yield();
    slot = object;
    if (i % 1000 == 0) most = std::max(most, s.objects.stats().slabs);
  }
  consumer.join();
  CHECK(most <= 2);
}

TEST_CASE("threads that end leave their blocks to others") {
  Installed s;
  for (int i = 0; i < 50; ++i) {
    std::thread([] {
      for (const std::size_t size : {24, 48, 100, 1000}) Drop(FakeTvmFfiMake(size, 8, kNode));
    }).join();
  }
  CHECK(s.objects.stats().slabs == 4);
  CHECK(s.objects.stats().allocations == 50 * 4);
}

// Dropped by a destructor that runs after this library's own for the thread.
struct DropAtThreadEnd {
  std::vector<void*> objects;
  ~DropAtThreadEnd() {
    for (void* object : objects) TVMFFIObjectDecRef(object);
    if (!objects.empty()) TVMFFIObjectDecRef(FakeTvmFfiMake(48, 8, kNode));  // and one is made
  }
};

TEST_CASE("objects may be dropped, and made, at the very end of a thread") {
  Installed s;
  std::thread([] {
    thread_local DropAtThreadEnd at_end;  // made first, destroyed last
    at_end.objects.push_back(FakeTvmFfiMake(48, 8, kNode));
    at_end.objects.push_back(FakeTvmFfiMake(48000, 8, kNode));
  }).join();
  const TvmFfiObjectStats stats = s.objects.stats();
  CHECK(stats.allocations == 3);
  CHECK(stats.live == 0);
  CHECK(stats.malloc_allocations == 0);
}

#if PACKALLOC_FORKS_AMONG_THREADS
TEST_CASE("a forked child makes and drops objects while the parent's threads do") {
  const absl::StatusOr<TvmFfiObjectAllocator> installed = InstallTvmFfiObjectAllocator(*Pack(CpuAllocator()));
  REQUIRE(installed.ok());
  std::atomic<bool> stop{false};
  std::vector<std::thread> busy;
  for (int t = 0; t < 2; ++t) {
    busy.emplace_back([&] {
      std::vector<void*> objects;
      while (!stop) {
        for (std::size_t i = 0; i < 500; ++i) objects.push_back(FakeTvmFfiMake(24 + i, 8, kNode));
        DropAll(objects);
        for (int i = 0; i < 100; ++i) installed->Trim().IgnoreError();
      }
    });
  }
  std::vector<void*> objects;
  for (std::size_t i = 0; i < 500; ++i) objects.push_back(FakeTvmFfiMake(24 + i, 8, kNode));  // slabs that it can use
  for (int i = 0; i < 30; ++i) {
    CHECK(HoldsInChild([&] {
      bool ok = true;
      for (void* object : objects) ok = ok && TVMFFIObjectDecRef(object) == 0;
      for (std::size_t n = 24; n < 500; ++n) {
        void* object = FakeTvmFfiMake(n, 8, kNode);
        ok = ok && object != nullptr && TVMFFIObjectDecRef(object) == 0;
      }
      return ok && installed->Trim().ok();
    }));
  }
  stop = true;
  for (std::thread& thread : busy) thread.join();
  DropAll(objects);
  CHECK(installed->stats().live == 0);
  CHECK(installed->Uninstall().ok());
}
#endif

// Static: made before main ends, dropped while the process exits, after whatever was destroyed before it.
struct DropAtExit {
  void* objects[2] = {};
  ~DropAtExit() {
    for (void* object : objects) {
      if (object != nullptr) TVMFFIObjectDecRef(object);
    }
  }
} at_exit;

TEST_CASE("objects may be dropped while the process exits") {
  auto record = MockAllocator();
  const absl::StatusOr<TvmFfiObjectAllocator> objects = InstallTvmFfiObjectAllocator(*Pack(record));
  REQUIRE(objects.ok());
  at_exit.objects[0] = FakeTvmFfiMake(48, 8, kNode);
  at_exit.objects[1] = FakeTvmFfiMake(48000, 8, kNode);
  CHECK(objects->stats().live == 2);
  CHECK(objects->Uninstall().ok());
}

}  // namespace
}  // namespace packalloc
