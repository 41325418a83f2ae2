#include "lib/layers/reclaim.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <future>
#include <memory>
#include <thread>

namespace packalloc {
namespace {

TEST_CASE("one group per memory domain, one of its own where there is none") {
  const std::uint32_t domain = 0xFFFF0001;
  const auto a = ReclaimGroup::Of(domain), b = ReclaimGroup::Of(domain), c = ReclaimGroup::Of(domain + 1);
  CHECK(a == b);
  CHECK(a != c);
  CHECK(ReclaimGroup::Of(0) != ReclaimGroup::Of(0));
}

TEST_CASE("nothing under way: nothing to wait for") {
  ReclaimGroup group;
  const std::uint64_t seen = group.completed();
  CHECK_FALSE(group.WaitForRelease(seen));
  group.BeginRelease();
  CHECK_FALSE(group.WaitForRelease(seen));  // one's own
  group.EndRelease();
  CHECK(group.WaitForRelease(seen));
}

// Often, because only sometimes the one who waits comes first.
TEST_CASE("waits for a release that another thread has under way") {
  ReclaimGroup group;
  for (int round = 0; round < 300; ++round) {
    const std::uint64_t seen = group.completed();
    std::promise<void> begun, waiting;
    std::thread releasing([&] {
      group.BeginRelease();
      begun.set_value();
      waiting.get_future().wait();
      for (int i = 0; i < 10; ++i) std::this_thread::yield();
      group.EndRelease();
    });
    begun.get_future().wait();
    waiting.set_value();
    CHECK(group.WaitForRelease(seen));
    releasing.join();
  }
}

TEST_CASE("asks the others, in turn, until enough is released") {
  struct Member : ReclaimGroup::Member {
    std::size_t has = 0;
    std::size_t Reclaim(std::size_t nbytes) noexcept override {
      const std::size_t given = std::min(nbytes, has);
      has -= given;
      return given;
    }
  };
  ReclaimGroup group;
  auto a = std::make_shared<Member>(), b = std::make_shared<Member>(), c = std::make_shared<Member>();
  for (const auto& member : {a, b, c}) {
    member->has = 10;
    group.Join(member);
  }
  CHECK(group.Ask(15, a.get()) == 15);
  CHECK(a->has == 10);
  CHECK(b->has == 0);
  CHECK(c->has == 5);
  c.reset();
  CHECK(group.Ask(15, a.get()) == 0);
}

}  // namespace
}  // namespace packalloc
