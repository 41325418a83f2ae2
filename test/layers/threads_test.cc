// Layers under threads: buffers freed by others than those who allocated them, statistics, Clear and Trim meanwhile,
// threads that end, and a device that hands out the last address again at once.
#include <doctest/doctest.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "packalloc/backends/cpu.h"
#include "packalloc/layers/checked.h"
#include "packalloc/layers/counted.h"
#include "packalloc/layers/failing.h"
#include "packalloc/layers/fallback.h"
#include "packalloc/layers/limited.h"
#include "packalloc/layers/lru.h"
#include "packalloc/layers/traced.h"
#include "test/temp_dir.h"
#include "tools/trace_reader.h"

namespace packalloc {
namespace {

// The heap, but that a freed block serves the very next request of its size, on whatever thread.
class LastFirst {
 public:
  ~LastFirst() {
    for (const CpuBuf& block : free_) cpu_.free(block, block.nbytes, {}).IgnoreError();
  }
  static Allocator<CpuBuf> Make() {
    auto state = std::make_shared<LastFirst>();
    Allocator<CpuBuf> record = state->cpu_;
    record.alloc = [state](std::size_t nbytes, const BufferSpec& spec) -> absl::StatusOr<CpuBuf> {
      {
        const std::lock_guard lock(state->mutex_);
        if (!state->free_.empty() && state->free_.back().nbytes == nbytes) {
          const CpuBuf block = state->free_.back();
          state->free_.pop_back();
          return block;
        }
      }
      return state->cpu_.alloc(nbytes, spec);
    };
    record.free = [state](const CpuBuf& block, std::size_t, const BufferSpec&) {
      const std::lock_guard lock(state->mutex_);
      state->free_.push_back(block);
      return absl::OkStatus();
    };
    return record;
  }

 private:
  Allocator<CpuBuf> cpu_ = CpuAllocator();
  std::mutex mutex_;
  std::vector<CpuBuf> free_;
};

// A few at a time from producers to consumers.
class Channel {
 public:
  void Put(AnyBuf buf) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return bufs_.size() < 16; });
    bufs_.push_back(std::move(buf));
    changed_.notify_all();
  }
  AnyBuf Take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !bufs_.empty(); });
    AnyBuf buf = std::move(bufs_.front());
    bufs_.pop_front();
    changed_.notify_all();
    return buf;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<AnyBuf> bufs_;
};

constexpr int kRounds = 400;
constexpr int kPairs = 3;

// Every buffer holds its size in each byte when it is freed, whoever does.
void Exchange(const PackedAllocator& device) {
  Channel channel;
  std::atomic<int> wrong{0};
  std::atomic<bool> stop{false};
  const auto produce = [&](int seed) {
    for (int i = 0; i < kRounds; ++i) {
      const std::size_t nbytes = 64u << ((seed + i) % 3);
      const absl::StatusOr<AnyBuf> buf = device.alloc(nbytes);
      const std::vector<std::byte> bytes(nbytes, static_cast<std::byte>(nbytes / 64));
      if (!buf.ok() || !device.copyin(*buf, bytes).ok()) {
        ++wrong;
        channel.Put(AnyBuf());
      } else {
        channel.Put(*buf);
      }
    }
  };
  const auto consume = [&] {
    for (int i = 0; i < kRounds; ++i) {
      const AnyBuf buf = channel.Take();
      std::vector<std::byte> bytes(buf.nbytes());
      if (!device.copyout(absl::MakeSpan(bytes), buf).ok()) ++wrong;
      for (const std::byte b : bytes) wrong += b == static_cast<std::byte>(buf.nbytes() / 64) ? 0 : 1;
      if (!device.free(buf, buf.nbytes()).ok()) ++wrong;
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < kPairs; ++i) {
    threads.emplace_back(produce, i);
    threads.emplace_back(consume);
  }
  std::thread looker([&] {
    while (!stop) {
      if (const auto lru = Find<LruControl>(device)) {
        lru->stats();
        lru->Trim(1000).IgnoreError();
        lru->Clear().IgnoreError();
      }
      if (const auto counted = Find<CountedControl>(device)) {
        if (counted->counts().current_bytes > 1000000) ++wrong;  // below 0, it would be huge
        counted->PushScope();
        counted->PopScope();
        counted->by_thread();
      }
      if (const auto checked = Find<CheckedControl>(device)) checked->stats();
      if (const auto limited = Find<LimitedControl>(device)) limited->used_bytes();
      if (const auto traced = Find<TracedControl>(device)) traced->Flush().IgnoreError();
      // Threads that come and go, with a buffer that another frees.
      AnyBuf buf;
      std::thread([&] { buf = *device.alloc(64); }).join();
      if (!device.free(buf, 64).ok()) ++wrong;
    }
  });
  for (std::thread& thread : threads) thread.join();
  stop = true;
  looker.join();
  CHECK(wrong == 0);
  if (const auto counted = Find<CountedControl>(device)) {
    CHECK(counted->counts().current_bytes == 0);
    CHECK(counted->counts().allocations == counted->counts().frees);
  }
  if (const auto checked = Find<CheckedControl>(device)) {
    CHECK(checked->stats().live_buffers == 0);
    CHECK(checked->stats().faults == 0);
  }
  if (const auto limited = Find<LimitedControl>(device); limited && !Find<LruControl>(device)) {
    CHECK(limited->used_bytes() == 0);
  }
  if (const auto fallback = Find<FallbackControl>(device)) CHECK(fallback->second_bytes() == 0);
}

const TracedOptions& Trace() {
  static const TempDir dir;
  static const TracedOptions options{.file = dir / "trace.csv", .block_bytes = 300};
  return options;
}

PackedAllocator Device() { return *Pack(LastFirst::Make()); }

TEST_CASE("Checked between threads") { Exchange(*Checked(Device(), {.stack_depth = 2})); }
TEST_CASE("Checked over Lru between threads") { Exchange(*Checked(*Lru(Device()), {.stack_depth = 0})); }
TEST_CASE("Counted between threads") { Exchange(*Counted(Device(), {.by_thread = true})); }
TEST_CASE("Limited between threads") { Exchange(*Limited(Device(), 1 << 20)); }
TEST_CASE("Lru over Limited between threads") { Exchange(*Lru(*Limited(Device(), 1 << 20))); }
TEST_CASE("Failing between threads") { Exchange(*Failing(Device(), {{.member = Member::kHostPtr, .every = 2}})); }
TEST_CASE("Fallback between threads") { Exchange(*Fallback(*Limited(Device(), 1000), Device())); }
TEST_CASE("Traced between threads: the file can have happened") {
  Exchange(*Traced(Device(), Trace()));
  TraceEvent event;
  absl::StatusOr<TraceReader> reader = TraceReader::Open(Trace().file);
  REQUIRE(reader.ok());
  while (true) {
    const absl::StatusOr<bool> more = reader->Next(event);
    if (!more.ok()) FAIL(more.status().message());
    if (!*more) break;
  }
  CHECK(reader->live_count() == 0);
}
TEST_CASE("all of them between threads") {
  Exchange(*Traced(*Counted(*Checked(*Lru(*Limited(*Failing(Device()), 1 << 20)), {.stack_depth = 0})), Trace()));
}

}  // namespace
}  // namespace packalloc
