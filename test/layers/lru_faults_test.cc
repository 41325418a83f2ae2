// Errors and exceptions of the inner record, exhaustion while others release, threads, a forked child.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <future>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "packalloc/layers/lru.h"
#include "test/layers/fake_record.h"
#include "test/sanitizers.h"

namespace packalloc {
namespace {

struct Stack {
  explicit Stack(const LruOptions& options = {}, std::size_t capacity = SIZE_MAX) {
    fake->capacity = capacity;
    fake->log_calls = false;
    device = *Lru(*Pack(FakeRecord(fake)), options);
    cache = Find<LruControl>(device);
  }
  void CheckNothingLeaks() {
    cache = nullptr;
    device = PackedAllocator();
    CHECK(fake->live.empty());
    CHECK(fake->foreign_frees == 0);
  }
  std::shared_ptr<Fake> fake = std::make_shared<Fake>();
  PackedAllocator device;
  std::shared_ptr<LruControl> cache;
};

// Another thread gets an answer: no lock was left held.
bool ServesAnotherThread(const Stack& s) {
  auto served = std::async(std::launch::async, [&] {
    absl::StatusOr<AnyBuf> buf = s.device.alloc(64);
    return buf.ok() && s.device.free(*buf, 64).ok();
  });
  return served.wait_for(std::chrono::seconds(20)) == std::future_status::ready && served.get();
}

void Fill(const Stack& s, int count) {
  std::vector<AnyBuf> bufs;
  for (int i = 0; i < count; ++i) bufs.push_back(*s.device.alloc(100 + i));
  for (const AnyBuf& buf : bufs) REQUIRE(s.device.free(buf, buf.nbytes()).ok());
}

TEST_CASE("a release that throws or fails in Clear: the others are released, one error says so") {
  for (bool throws : {true, false}) {
    int frees = 0;  // outlives the stack, whose end frees too
    Stack s;
    Fill(s, 3);
    s.fake->on_free = [&]() -> absl::Status {
      if (++frees != 2) return absl::OkStatus();
      if (throws) throw std::runtime_error("driver fell over");
      return absl::UnavailableError("driver fell over");
    };
    const absl::Status cleared = s.cache->Clear();
    CHECK(cleared.code() == (throws ? absl::StatusCode::kInternal : absl::StatusCode::kUnavailable));
    CHECK(cleared.message().find("1 of 3") != std::string::npos);
    CHECK(cleared.message().find("driver fell over") != std::string::npos);
    CHECK(frees == 3);
    CHECK(s.cache->stats().failed_frees == 1);
    CHECK(s.cache->stats().cached_buffers == 0);
    CHECK(s.cache->Clear().ok());
    CHECK(s.fake->live.size() == 1);
    CHECK(ServesAnotherThread(s));
  }
}

TEST_CASE("what side work throws does not reach the caller") {
  Stack s({.max_bytes = 150}, 300);
  s.fake->on_free = []() -> absl::Status { throw 42; };
  Fill(s, 2);  // the second pushes the first out
  CHECK(s.cache->stats().evictions == 1);
  CHECK(s.cache->stats().failed_frees == 1);
  const absl::StatusOr<AnyBuf> a = s.device.alloc(99);
  REQUIRE(a.ok());
  const absl::Status full = s.device.alloc(150).status();  // the flush fails to free
  CHECK(full.code() == absl::StatusCode::kResourceExhausted);
  CHECK(s.cache->stats().failed_frees == 2);
  s.fake->on_free = nullptr;
  REQUIRE(s.device.free(*a, 99).ok());
  CHECK(ServesAnotherThread(s));
  CHECK(s.cache->Clear().ok());
}

TEST_CASE("what the requested call throws passes through, and nothing has changed") {
  Stack s;
  Fill(s, 2);
  const LruStats before = s.cache->stats();
  s.fake->on_alloc = []() -> absl::Status { throw std::logic_error("mine"); };
  CHECK_THROWS_AS(s.device.alloc(7).IgnoreError(), std::logic_error);
  s.fake->on_alloc = nullptr;
  CHECK(s.cache->stats().misses == before.misses);
  CHECK(s.cache->stats().in_use_bytes == 0);
  CHECK(s.cache->stats().peak_held_bytes == before.peak_held_bytes);

  const AnyBuf a = *s.device.alloc(9, {.nolru = true});
  s.fake->on_free = []() -> absl::Status { throw std::logic_error("mine"); };
  CHECK_THROWS_AS(s.device.free(a, 9, {.nolru = true}).IgnoreError(), std::logic_error);
  s.fake->on_free = [] { return absl::UnavailableError("not now"); };
  CHECK(s.device.free(a, 9, {.nolru = true}).code() == absl::StatusCode::kUnavailable);
  s.fake->on_free = nullptr;
  CHECK(s.cache->stats().in_use_bytes == 9);
  CHECK(s.cache->stats().failed_frees == 0);
  CHECK(ServesAnotherThread(s));
  CHECK(s.device.free(a, 9, {.nolru = true}).ok());
  CHECK(s.cache->stats().in_use_bytes == 0);
  s.CheckNothingLeaks();
}

TEST_CASE("after a recovery nothing of the failure remains; an error that is not exhaustion is asked once") {
  Stack s;
  Fill(s, 1);
  int calls = 0;
  s.fake->on_alloc = [&] { return ++calls == 1 ? absl::ResourceExhaustedError("once") : absl::OkStatus(); };
  const absl::StatusOr<AnyBuf> a = s.device.alloc(5);
  REQUIRE(a.ok());
  CHECK(calls == 2);
  s.fake->on_alloc = [&] {
    ++calls;
    return absl::InternalError("device lost");
  };
  Fill(Stack(), 1);
  CHECK(s.device.alloc(6).status().code() == absl::StatusCode::kInternal);
  CHECK(calls == 3);
  CHECK(s.cache->stats().flushes == 1);
  s.fake->on_alloc = nullptr;
  REQUIRE(s.device.free(*a, 5).ok());
  s.CheckNothingLeaks();
}

TEST_CASE("exhausted while another thread is releasing: waits for it") {
  Stack s({}, 1000);
  const AnyBuf a = *s.device.alloc(900);
  REQUIRE(s.device.free(a, 900).ok());
  std::promise<void> in_free, go_on;
  s.fake->on_free = [&] {
    in_free.set_value();
    go_on.get_future().wait();
    return absl::OkStatus();
  };
  std::thread clearing([&] { CHECK(s.cache->Clear().ok()); });
  in_free.get_future().wait();
  // The cache is empty and the memory not yet back.
  std::atomic<int> tries{0};
  s.fake->on_alloc = [&] {
    if (++tries > 1) return absl::OkStatus();
    go_on.set_value();
    return absl::ResourceExhaustedError("not back yet");
  };
  const absl::StatusOr<AnyBuf> b = s.device.alloc(800);
  CHECK(b.ok());
  clearing.join();
  s.fake->on_free = nullptr;
  s.fake->on_alloc = nullptr;
  if (b.ok()) CHECK(s.device.free(*b, 800).ok());
  s.CheckNothingLeaks();
}

TEST_CASE("an allocation from inside a release does not wait for itself") {
  Stack s({}, 1000);
  Fill(s, 2);
  absl::Status nested;
  bool again = false;
  s.fake->on_free = [&] {
    if (!std::exchange(again, true)) nested = s.device.alloc(2000).status();
    return absl::OkStatus();
  };
  CHECK(s.cache->Clear().ok());
  CHECK(nested.code() == absl::StatusCode::kResourceExhausted);
  s.fake->on_free = nullptr;
  s.CheckNothingLeaks();
}

// Four threads over a capacity that forces flushes, a fifth that clears, and other caches that come and go.
TEST_CASE("threads: no foreign byte, no false exhaustion, the counters hold") {
  constexpr int kThreads = 4;
  constexpr int kRounds = 20000;
  const unsigned seed = std::random_device()();
  CAPTURE(seed);
  for (const LruOptions& options : {LruOptions{}, LruOptions{.max_bytes = 1 << 20},
                                    LruOptions{.max_bytes = 1 << 20, .policy = EvictionPolicy::kGreedyDualSize}}) {
    Stack s(options, 8 << 20);
    std::atomic<int> running{kThreads};
    std::atomic<int> failures{0}, foreign{0}, over{0};
    std::atomic<std::uint64_t> allocations{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937 random(seed + static_cast<unsigned>(t));
        const std::size_t sizes[] = {512, 4096, 65536};
        std::deque<AnyBuf> mine;
        const auto release = [&] {
          const AnyBuf buf = mine.front();
          mine.pop_front();
          const auto* at = static_cast<unsigned char*>(*buf.get<void*>());
          if (at[0] != t || at[buf.nbytes() / 2] != t || at[buf.nbytes() - 1] != t) ++foreign;
          if (!s.device.free(buf, buf.nbytes()).ok()) ++failures;
        };
        for (int i = 0; i < kRounds; ++i) {
          if (mine.size() == 16 || (!mine.empty() && random() % 2 == 0)) {
            release();
            continue;
          }
          const std::size_t n = sizes[random() % 3];
          absl::StatusOr<AnyBuf> buf = s.device.alloc(n);
          if (!buf.ok()) {
            ++failures;
            continue;
          }
          ++allocations;
          auto* at = static_cast<unsigned char*>(*buf->get<void*>());
          at[0] = at[n / 2] = at[n - 1] = static_cast<unsigned char>(t);
          mine.push_back(*buf);
        }
        while (!mine.empty()) release();
        --running;
      });
    }
    std::thread clearing([&] {
      while (running > 0) {
        if (!s.cache->Clear().ok()) ++failures;
        const LruStats now = s.cache->stats();
        if (now.cached_bytes > options.max_bytes) ++over;
        if (now.peak_held_bytes > (8 << 20)) ++over;
        std::this_thread::yield();
      }
    });
    while (running > 0) {
      Stack second;
      Fill(second, 5);
      second.CheckNothingLeaks();
    }
    for (std::thread& thread : threads) thread.join();
    clearing.join();
    CHECK(s.cache->Clear().ok());
    const LruStats end = s.cache->stats();
    CHECK(failures == 0);
    CHECK(foreign == 0);
    CHECK(over == 0);
    CHECK(end.cached_bytes == 0);
    CHECK(end.cached_buffers == 0);
    CHECK(end.in_use_bytes == 0);
    CHECK(end.in_use_buffers == 0);
    CHECK(end.failed_frees == 0);
    CHECK(end.hits + end.misses == allocations);
    CHECK(end.peak_in_use_bytes <= kThreads * 16 * 65536);
    s.CheckNothingLeaks();
  }
}

TEST_CASE("peaks are exact when threads take turns, whichever thread is at the peak") {
  Stack s;
  std::vector<AnyBuf> bufs;
  std::size_t in_use = 0, peak = 0;
  std::mt19937 random(1);
  for (int turn = 0; turn < 60; ++turn) {
    std::thread([&] {
      for (int i = 0; i < 50; ++i) {
        if (bufs.empty() || random() % 3 != 0) {
          const std::size_t n = 1 + random() % 5;
          bufs.push_back(*s.device.alloc(n));
          in_use += n;
          peak = std::max(peak, in_use);
        } else {
          in_use -= bufs.back().nbytes();
          CHECK(s.device.free(bufs.back(), bufs.back().nbytes()).ok());
          bufs.pop_back();
        }
        if (turn % 7 == 0) CHECK(s.cache->stats().in_use_bytes == in_use);
      }
      if (turn % 5 == 4) {
        for (; !bufs.empty(); bufs.pop_back()) CHECK(s.device.free(bufs.back(), bufs.back().nbytes()).ok());
        in_use = 0;
      }
    }).join();
    CHECK(s.cache->stats().peak_in_use_bytes == peak);
  }
  for (const AnyBuf& buf : bufs) CHECK(s.device.free(buf, buf.nbytes()).ok());
  bufs.clear();
  s.CheckNothingLeaks();
}

TEST_CASE("threads that come and go use what others left, and nothing grows") {
  Stack s;
  for (int i = 0; i < 100; ++i) {
    std::thread([&] {
      std::vector<AnyBuf> mine;
      for (std::size_t n : {64, 4096, 64}) mine.push_back(*s.device.alloc(n));
      for (const AnyBuf& buf : mine) CHECK(s.device.free(buf, buf.nbytes()).ok());
    }).join();
  }
  CHECK(s.cache->stats().misses == 3);
  CHECK(s.cache->stats().peak_held_bytes == 64 + 4096 + 64);
  s.CheckNothingLeaks();
}

TEST_CASE("one thread allocates, another frees: nothing grows") {
  constexpr std::size_t kMost = 8;
  Stack s({.max_bytes = 1 << 20});
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<AnyBuf> queue;
  std::thread consumer([&] {
    for (int i = 0; i < 20000; ++i) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return !queue.empty(); });
      const AnyBuf buf = queue.front();
      queue.pop_front();
      lock.unlock();
      changed.notify_all();
      CHECK(s.device.free(buf, buf.nbytes()).ok());
    }
  });
  for (int i = 0; i < 20000; ++i) {
    const AnyBuf buf = *s.device.alloc(4096);
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return queue.size() < kMost; });
    queue.push_back(buf);
    lock.unlock();
    changed.notify_all();
  }
  consumer.join();
  CHECK(s.cache->stats().misses <= kMost + 3);
  CHECK(s.cache->stats().in_use_bytes == 0);
  s.CheckNothingLeaks();
}

#if PACKALLOC_FORKS_AMONG_THREADS
TEST_CASE("a forked child uses the cache while the parent's threads hold its locks") {
  Stack s({.max_bytes = 64 << 10}, 1 << 20);
  std::atomic<bool> stop{false};
  std::vector<std::thread> busy;
  for (int t = 0; t < 2; ++t) {
    busy.emplace_back([&, t] {
      for (std::size_t i = 0; !stop; ++i) {
        const std::size_t n = 100 + (i * 7 + static_cast<std::size_t>(t)) % 2000;
        absl::StatusOr<AnyBuf> buf = s.device.alloc(n);
        if (buf.ok()) s.device.free(*buf, n).IgnoreError();
        if (i % 64 == 0) s.cache->Trim(1000).IgnoreError();
      }
    });
  }
  for (int i = 0; i < 50; ++i) {
    s.fake->mutex.lock();  // the record's own to get right
    const pid_t child = fork();
    s.fake->mutex.unlock();
    REQUIRE(child >= 0);
    if (child == 0) {
      alarm(20);
      bool ok = true;
      for (std::size_t n = 1; n < 500; ++n) {
        absl::StatusOr<AnyBuf> buf = s.device.alloc(n * 64);
        ok = ok && buf.ok() && s.device.free(*buf, n * 64).ok();
      }
      ok = ok && s.cache->Clear().ok() && s.cache->stats().cached_bytes == 0;
      ok = ok && s.device.alloc(2 << 20).status().code() == absl::StatusCode::kResourceExhausted;
      _exit(ok ? 0 : 1);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  }
  stop = true;
  for (std::thread& thread : busy) thread.join();
  s.CheckNothingLeaks();
}
#endif

}  // namespace
}  // namespace packalloc
