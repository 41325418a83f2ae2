#include "lib/c/handle_table.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace packalloc {
namespace {

using Table = HandleTable<std::shared_ptr<int>>;

absl::StatusCode FindCode(Table& table, std::uint64_t handle) { return table.Find(handle).status().code(); }

TEST_CASE("a handle is good until it is closed, and its number does not come back") {
  Table table(1, "thing");
  std::set<std::uint64_t> seen;
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t handle = table.Add(std::make_shared<int>(i)).value();
    CHECK(seen.insert(handle).second);
    CHECK(**(*table.Find(handle)) == i);
    CHECK(table.Close(handle).ok());
    CHECK(FindCode(table, handle) == absl::StatusCode::kInvalidArgument);
    CHECK(table.Close(handle).code() == absl::StatusCode::kInvalidArgument);
    CHECK(table.Lock(handle).status().code() == absl::StatusCode::kInvalidArgument);
  }
}

TEST_CASE("many at once") {
  Table table(1, "thing");
  std::vector<std::uint64_t> handles;
  for (int i = 0; i < 5000; ++i) handles.push_back(table.Add(std::make_shared<int>(i)).value());
  for (int i = 0; i < 5000; ++i) CHECK(**(*table.Find(handles[i])) == i);
  for (const std::uint64_t handle : handles) CHECK(table.Close(handle).ok());
}

TEST_CASE("numbers that are no handles of this table") {
  Table table(1, "thing");
  Table other(2, "other thing");
  const std::uint64_t foreign = other.Add(std::make_shared<int>(1)).value();
  const std::uint64_t mine = table.Add(std::make_shared<int>(1)).value();
  CHECK(FindCode(table, 0) == absl::StatusCode::kInvalidArgument);
  CHECK(FindCode(table, foreign) == absl::StatusCode::kInvalidArgument);
  CHECK(table.Find(foreign).status().message() == "that is no thing handle");
  CHECK(FindCode(table, reinterpret_cast<std::uintptr_t>(&table)) == absl::StatusCode::kInvalidArgument);
  CHECK(FindCode(table, mine + 1) == absl::StatusCode::kInvalidArgument);          // a slot that was never used
  CHECK(FindCode(table, mine + (1 << 20)) == absl::StatusCode::kInvalidArgument);  // a chunk that was never made
  CHECK(FindCode(table, mine | 0xFFFFFFF) == absl::StatusCode::kInvalidArgument);  // no slot at all
  CHECK(FindCode(table, mine + (std::uint64_t{1} << 28)) == absl::StatusCode::kInvalidArgument);  // to come
  std::mt19937_64 random(7);
  for (int i = 0; i < 10000; ++i) {
    const std::uint64_t any = random() | (i % 2 == 0 ? std::uint64_t{9} << 60 : 0);
    if (any != mine) CHECK(FindCode(table, any) == absl::StatusCode::kInvalidArgument);
  }
}

TEST_CASE("an object lives until its last pin, and a lock needs it without pins") {
  Table table(1, "thing");
  auto object = std::make_shared<int>(5);
  const std::weak_ptr<int> watch = object;
  const std::uint64_t handle = table.Add(std::move(object)).value();
  {
    auto pin = table.Find(handle);
    CHECK(table.Lock(handle).status().code() == absl::StatusCode::kFailedPrecondition);
    CHECK(table.Close(handle).ok());
    CHECK(FindCode(table, handle) == absl::StatusCode::kInvalidArgument);
    CHECK(**(*pin) == 5);
  }
  CHECK(watch.expired());
}

TEST_CASE("a lock that is given up leaves the object, and excludes others meanwhile") {
  Table table(1, "thing");
  const std::uint64_t handle = table.Add(std::make_shared<int>(5)).value();
  {
    auto lock = table.Lock(handle);
    REQUIRE(lock.ok());
    CHECK(FindCode(table, handle) == absl::StatusCode::kInvalidArgument);
    CHECK(table.Close(handle).code() == absl::StatusCode::kInvalidArgument);
  }
  CHECK(FindCode(table, handle) == absl::StatusCode::kOk);
  (*table.Lock(handle)).Destroy();
  CHECK(FindCode(table, handle) == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("threads that add, find, lock and close each other's handles") {
  Table table(1, "thing");
  constexpr int kThreads = 4;
  constexpr int kShared = 16;
  std::vector<std::atomic<std::uint64_t>> shared(kShared);
  std::atomic<int> added{0};
  std::atomic<int> destroyed{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int i = 0; i < 3000; ++i) {
        auto& place = shared[random() % kShared];
        const std::uint64_t handle = place.load();
        switch (random() % 4) {
          case 0: {
            std::shared_ptr<int> object(new int(42), [&](int* p) {
              ++destroyed;
              delete p;
            });
            ++added;
            const std::uint64_t old = place.exchange(table.Add(std::move(object)).value());
            if (old != 0) table.Close(old).IgnoreError();
            break;
          }
          case 1:
            if (auto pin = table.Find(handle); pin.ok() && **(*pin) != 42) std::abort();
            break;
          case 2:
            if (auto lock = table.Lock(handle); lock.ok()) std::move(*lock).Destroy();
            break;
          default:
            table.Close(handle).IgnoreError();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& handle : shared) table.Close(handle.load()).IgnoreError();
  CHECK(added.load() == destroyed.load());
}

}  // namespace
}  // namespace packalloc
