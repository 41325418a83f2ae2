// How a pool ends: with the last of its copies and of its tensors, in whatever order and on whatever threads they go.
#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "packalloc/backends/mock.h"
#include "packalloc/packed_allocator.h"
#include "packalloc/tensor/tensor_pool.h"

namespace packalloc {
namespace {

constexpr DlDevice kDev0{DlDevice::kExtDev, 0};
constexpr DlDevice kDev1{DlDevice::kExtDev, 1};

struct TwoDevices {
  TwoDevices() {
    std::vector<TensorPoolDevice> devices;
    for (const DlDevice device : {kDev0, kDev1}) {
      Allocator<MockBuf> record = MockAllocator({.log_calls = false});
      mocks.push_back(Find<MockControl>(record));
      devices.push_back({device, *Pack(std::move(record))});
    }
    pool = *TensorPool::Make(std::move(devices));
  }
  std::size_t live_blocks() const { return mocks[0]->live_blocks() + mocks[1]->live_blocks(); }

  std::vector<std::shared_ptr<MockControl>> mocks;
  std::optional<TensorPool> pool;
};

TEST_CASE("the last copy and the last tensors go at one time, on several threads") {
  for (int round = 0; round < 300; ++round) {
    TwoDevices on;
    constexpr int kThreads = 3;
    std::atomic<int> ready{0};
    const auto wait_for_all = [&ready] {
      for (++ready; ready.load() < kThreads + 1;) std::this_thread::yield();
    };
    std::vector<std::thread> threads;
    threads.reserve(kThreads);
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, pool = *on.pool, mine = t % 2 == 0 ? kDev0 : kDev1]() mutable {
        std::vector<Tensor> tensors;
        for (int again = 0; again < 2; ++again) {  // the second time the thread's own part of the cache has them
          tensors.clear();
          for (int i = 0; i < 3; ++i) tensors.push_back(*pool.Empty({100 + i % 2 * 5000}, kUInt8, mine));
        }
        pool = TensorPool();
        wait_for_all();
        for (Tensor& tensor : tensors) tensor = Tensor();
      });
    }
    wait_for_all();
    on.pool.reset();
    for (std::thread& thread : threads) thread.join();
    REQUIRE(on.live_blocks() == 0);
  }
}

TEST_CASE("one tensor keeps what is cached on every device") {
  TwoDevices on;
  Tensor last = *on.pool->Empty({1}, kUInt8, kDev1);
  Tensor other = *on.pool->Empty({1}, kUInt8, kDev0);
  CHECK(on.pool->Empty({1}, kUInt8, kDev0).ok());
  on.pool.reset();
  other = Tensor();
  CHECK(on.live_blocks() == 3);
  last = Tensor();
  CHECK(on.live_blocks() == 0);
}

TEST_CASE("the control of a cache outlives the pool, what is cached does not") {
  TwoDevices on;
  const std::shared_ptr<LruControl> control = on.pool->cache();
  Tensor last = *on.pool->Empty({1}, kUInt8);
  CHECK(on.pool->Empty({5000}, kUInt8).ok());
  on.pool.reset();
  CHECK(control->stats().cached_buffers == 1);
  CHECK(control->stats().in_use_buffers == 1);
  last = Tensor();
  CHECK(control->stats().cached_buffers == 0);
  CHECK(control->stats().in_use_buffers == 0);
  CHECK(control->Clear().ok());
  CHECK(on.live_blocks() == 0);
}

TEST_CASE("a device that cannot wait for its work does not keep an ended pool") {
  Allocator<MockBuf> record = MockAllocator();
  const auto mock = Find<MockControl>(record);
  record.synchronize = [] { return absl::FailedPreconditionError("the stream is captured"); };
  {
    const TensorPool pool = *TensorPool::Make({{kDev0, *Pack(std::move(record))}});
    CHECK(pool.Empty({1}, kUInt8).ok());
    CHECK(pool.Clear().code() == absl::StatusCode::kFailedPrecondition);
    CHECK(mock->live_blocks() == 1);
  }
  CHECK(mock->live_blocks() == 0);
}

TEST_CASE("a replaced function may call the pool's own as long as a tensor keeps it") {
  Allocator<MockBuf> record = MockAllocator();
  const auto mock = Find<MockControl>(record);
  TensorPoolFunctions kept;
  std::optional<TensorPool> pool =
      *TensorPool::Make({{kDev0, *Pack(std::move(record))}}, {.replace = [&](TensorPoolFunctions own) {
                          kept = own;
                          return own;
                        }});
  Tensor last = *pool->Empty({1}, kUInt8);
  CHECK(pool->Empty({1}, kUInt8).ok());
  pool.reset();
  {
    const Tensor hit = *kept.empty({1}, kUInt8, kDev0, "global");
    const Tensor miss = *kept.empty({1}, kUInt8, kDev0, "global");
    CHECK(mock->live_blocks() == 3);
    last = Tensor();
    CHECK(mock->live_blocks() == 3);
  }
  CHECK(mock->live_blocks() == 0);
  CHECK(kept.empty({1}, kUInt8, kDev0, "global").status().code() == absl::StatusCode::kFailedPrecondition);
}

TEST_CASE("LRU=0 in the environment: a pool keeps nothing, and ends as any other") {
  setenv("LRU", "0", 1);
  TwoDevices on;
  unsetenv("LRU");
  CHECK(on.pool->Empty({1}, kUInt8).ok());
  CHECK(on.live_blocks() == 0);
  Tensor last = *on.pool->Empty({1}, kUInt8);
  on.pool.reset();
  CHECK(on.live_blocks() == 1);
  last = Tensor();
  CHECK(on.live_blocks() == 0);
}

}  // namespace
}  // namespace packalloc
