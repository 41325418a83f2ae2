// Limited, Counted, Failing and Fallback.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "packalloc/backends/cpu.h"
#include "packalloc/backends/mock.h"
#include "packalloc/backends/null.h"
#include "packalloc/layers/counted.h"
#include "packalloc/layers/failing.h"
#include "packalloc/layers/fallback.h"
#include "packalloc/layers/limited.h"
#include "packalloc/layers/lru.h"

namespace packalloc {
namespace {

constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;

std::exception_ptr Thrown() { return std::make_exception_ptr(std::runtime_error("thrown")); }

// ---- Limited ----

TEST_CASE("Limited refuses what would pass the limit, with the numbers and without asking the device") {
  const Allocator<MockBuf> record = MockAllocator();
  const PackedAllocator device = *Limited(*Pack(record), 1000);
  const auto limit = Find<LimitedControl>(device);
  const AnyBuf a = *device.alloc(600);
  const absl::Status refused = device.alloc(401).status();
  CHECK(refused.code() == kExhausted);
  CHECK(refused.message() == "MOCK: alloc of 401 bytes, but 1000 are allowed at a time and 600 are allocated");
  const AnyBuf b = *device.alloc(400);
  CHECK(limit->used_bytes() == 1000);
  CHECK(device.memory_info()->free_bytes == 0);
  CHECK(device.memory_info()->total_bytes == 1000);
  CHECK(device.traits().max_alloc_bytes == 1000);
  CHECK(Find<MockControl>(record)->log().Count(Member::kAlloc) == 2);
  std::byte mine{};
  const BufferSpec external{.external_ptr = reinterpret_cast<std::uintptr_t>(&mine)};
  const AnyBuf wrapped = *device.alloc(1, external);
  CHECK(limit->used_bytes() == 1000);
  CHECK(device.free(wrapped, 1, external).ok());
  CHECK(device.free(a, 600).ok());
  CHECK(limit->used_bytes() == 400);
  CHECK(device.free(b, 400).ok());
  CHECK(limit->used_bytes() == 0);
}

TEST_CASE("Limited takes back what it counted when the inner call fails or throws") {
  const Allocator<MockBuf> record = MockAllocator();
  const auto mock = Find<MockControl>(record);
  const PackedAllocator device = *Limited(*Pack(record), 1000);
  const auto limit = Find<LimitedControl>(device);
  mock->FailNth(Member::kAlloc, 1, absl::UnavailableError("no"));
  CHECK(device.alloc(1000).status().code() == absl::StatusCode::kUnavailable);
  CHECK(limit->used_bytes() == 0);
  mock->ThrowNth(Member::kAlloc, 1, Thrown());
  CHECK_THROWS_AS(device.alloc(1000).IgnoreError(), std::runtime_error);
  CHECK(limit->used_bytes() == 0);
  const AnyBuf buf = *device.alloc(1000);
  mock->FailNth(Member::kFree, 1, absl::UnavailableError("no"));
  CHECK(device.free(buf, 1000).code() == absl::StatusCode::kUnavailable);
  CHECK(limit->used_bytes() == 1000);
  CHECK(device.free(buf, 1000).ok());
  CHECK(limit->used_bytes() == 0);
}

TEST_CASE("a cache over Limited gives way; what one under it keeps counts") {
  const PackedAllocator over = *Lru(*Limited(*Pack(CpuAllocator()), 1000));
  const AnyBuf a = *over.alloc(600);
  CHECK(over.free(a, 600).ok());
  const absl::StatusOr<AnyBuf> b = over.alloc(700);
  REQUIRE(b.ok());
  CHECK(over.free(*b, 700).ok());

  const Allocator<MockBuf> record = MockAllocator();
  const PackedAllocator under = *Limited(*Lru(*Pack(record)), 1000);
  for (const std::size_t size : {600, 300, 700, 1000, 10}) {
    const AnyBuf buf = *under.alloc(size);
    CHECK(Find<MockControl>(record)->live_bytes() <= 1000);
    CHECK(under.free(buf, size).ok());
  }
  CHECK(Find<MockControl>(record)->peak_live_bytes() <= 1000);
}

TEST_CASE("Limited is exact under threads") {
  const PackedAllocator device = *Limited(*Pack(NullAllocator()), 1000);
  const auto limit = Find<LimitedControl>(device);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        const absl::StatusOr<AnyBuf> buf = device.alloc(400);
        if (limit->used_bytes() > 1000) FAIL_CHECK("over the limit");
        if (buf.ok() && !device.free(*buf, 400).ok()) FAIL_CHECK("free failed");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(limit->used_bytes() == 0);
}

// ---- Counted ----

TEST_CASE("Counted counts now, at most and in all, of scopes within scopes too") {
  const PackedAllocator device = *Counted(*Pack(CpuAllocator()));
  const auto control = Find<CountedControl>(device);
  const AnyBuf before = *device.alloc(100);
  control->PushScope();
  const AnyBuf a = *device.alloc(50);
  control->PushScope();
  const AnyBuf b = *device.alloc(30);
  CHECK(device.free(b, 30).ok());
  CHECK(device.free(before, 100).ok());  // of outside: nothing goes below 0
  const std::optional<Counts> inner = control->PopScope();
  CHECK(device.free(a, 50).ok());
  const std::optional<Counts> outer = control->PopScope();
  CHECK(!control->PopScope().has_value());
  REQUIRE(inner);
  CHECK(inner->current_bytes == 50);
  CHECK(inner->peak_bytes == 180);
  CHECK(inner->total_bytes == 30);
  CHECK(inner->allocations == 1);
  CHECK(inner->frees == 2);
  REQUIRE(outer);
  CHECK(outer->current_bytes == 0);
  CHECK(outer->peak_bytes == 180);
  CHECK(outer->peak_buffers == 3);
  CHECK(outer->total_bytes == 80);
  const Counts all = control->counts();
  CHECK(all.current_buffers == 0);
  CHECK(all.total_bytes == 180);
  CHECK(all.allocations == 3);
  CHECK(all.frees == 3);
}

TEST_CASE("Counted counts what failed apart, and leaves out external memory and empty buffers") {
  const Allocator<MockBuf> record = MockAllocator();
  const auto mock = Find<MockControl>(record);
  const PackedAllocator device = *Counted(*Pack(record));
  const auto control = Find<CountedControl>(device);
  mock->FailNth(Member::kAlloc, 1, absl::UnavailableError("no"));
  CHECK(!device.alloc(64).ok());
  mock->ThrowNth(Member::kAlloc, 1, Thrown());
  CHECK_THROWS_AS(device.alloc(64).IgnoreError(), std::runtime_error);
  CHECK(control->counts().failed_allocations == 2);
  CHECK(control->counts().allocations == 0);
  const AnyBuf buf = *device.alloc(64);
  mock->FailNth(Member::kFree, 1, absl::UnavailableError("no"));
  CHECK(!device.free(buf, 64).ok());
  CHECK(control->counts().current_bytes == 64);
  CHECK(device.free(buf, 64).ok());
  std::byte mine{};
  const BufferSpec external{.external_ptr = reinterpret_cast<std::uintptr_t>(&mine)};
  CHECK(device.free(*device.alloc(1, external), 1, external).ok());
  CHECK(device.free(*device.alloc(0), 0).ok());
  CHECK(control->counts().allocations == 1);
}

TEST_CASE("Counted by thread: a buffer that another thread frees is counted there") {
  const PackedAllocator device = *Counted(*Pack(CpuAllocator()), {.by_thread = true});
  const auto control = Find<CountedControl>(device);
  AnyBuf buf;
  std::thread maker([&] { buf = *device.alloc(64); });
  const std::thread::id maker_id = maker.get_id();
  maker.join();
  CHECK(device.free(buf, 64).ok());
  const auto threads = control->by_thread();
  CHECK(threads.at(maker_id).allocated_bytes == 64);
  CHECK(threads.at(maker_id).frees == 0);
  CHECK(threads.at(std::this_thread::get_id()).freed_bytes == 64);
}

// ---- Failing ----

TEST_CASE("Failing: the nth call, every nth, any member, any status, an exception") {
  const PackedAllocator device = *Failing(*Pack(CpuAllocator()));
  const auto faults = Find<FailingControl>(device);
  std::vector<std::byte> host(8);
  faults->Add({.member = Member::kAlloc, .nth = 2});
  const AnyBuf buf = *device.alloc(64);
  CHECK(device.alloc(64).status().code() == kExhausted);
  const AnyBuf other = *device.alloc(64);

  faults->ClearRules();
  faults->Add({.member = Member::kCopyin, .every = 3, .status = absl::UnavailableError("link down")});
  std::string outcome;
  for (int i = 0; i < 9; ++i) outcome += device.copyin(buf, host).ok() ? '.' : 'x';
  CHECK(outcome == "..x..x..x");
  CHECK(faults->calls(Member::kCopyin) == 9);
  CHECK(faults->failures(Member::kCopyin) == 3);

  faults->ClearRules();
  faults->Add({.nth = 2, .exception = Thrown()});
  CHECK(device.copyin(buf, host).ok());
  CHECK_THROWS_AS(device.copyout(absl::MakeSpan(host), buf).IgnoreError(), std::runtime_error);
  CHECK(device.copyout(absl::MakeSpan(host), buf).ok());

  faults->ClearRules();
  faults->Add({.every = 1, .status = absl::DataLossError("bad")});
  CHECK(device.copyin(buf, host).code() == absl::StatusCode::kDataLoss);
  CHECK(device.copyout(absl::MakeSpan(host), buf).code() == absl::StatusCode::kDataLoss);
  CHECK(device.offset(buf, 8, 8).status().code() == absl::StatusCode::kDataLoss);
  CHECK(device.transfer(buf, other, 8).code() == absl::StatusCode::kDataLoss);
  CHECK(device.host_ptr(buf).status().code() == absl::StatusCode::kDataLoss);
  CHECK(device.memory_info().status().code() == absl::StatusCode::kDataLoss);
  CHECK(*device.addr(buf) == DeviceAddress{});
  CHECK(device.free(buf, 64).code() == absl::StatusCode::kDataLoss);
  faults->ClearRules();
  CHECK(device.free(buf, 64).ok());
  CHECK(device.free(other, 64).ok());
}

TEST_CASE("Failing at random: the same calls for the same seed, about as many as asked for") {
  const auto run = [](std::uint64_t seed) {
    const PackedAllocator device =
        *Failing(*Pack(NullAllocator()), {{.member = Member::kAlloc, .probability = 0.25, .seed = seed}});
    std::string outcome;
    for (int i = 0; i < 1000; ++i) outcome += device.alloc(8).ok() ? '.' : 'x';
    return outcome;
  };
  const std::string once = run(1);
  CHECK(once == run(1));
  CHECK(once != run(2));
  const auto failed = std::count(once.begin(), once.end(), 'x');
  CHECK(failed > 200);
  CHECK(failed < 300);
  CHECK(Failing(*Pack(NullAllocator()), {{.probability = 1.5}}).status().code() == absl::StatusCode::kInvalidArgument);
}

// ---- Fallback ----

struct Two {
  explicit Two(MockOptions first_options = {.name = "FAST", .capacity_bytes = 100},
               MockOptions second_options = {.name = "SLOW"})
      : first(MockAllocator(std::move(first_options))), second(MockAllocator(std::move(second_options))) {}
  std::size_t misuses() const {
    return Find<MockControl>(first)->misuses().size() + Find<MockControl>(second)->misuses().size();
  }
  Allocator<MockBuf> first;
  Allocator<MockBuf> second;
};

TEST_CASE("Fallback remembers who made each buffer") {
  const Two two;
  const PackedAllocator device = *Fallback(*Pack(two.first), *Pack(two.second));
  const auto control = Find<FallbackControl>(device);
  const AnyBuf fast = *device.alloc(80);
  const AnyBuf slow = *device.alloc(64);
  const AnyBuf view = *device.offset(slow, 8, 8);
  CHECK(control->second_buffers() == 1);
  CHECK(control->second_bytes() == 64);
  std::vector<std::byte> bytes(64, std::byte{9});
  std::vector<std::byte> host(8);
  CHECK(device.copyin(slow, bytes).ok());
  CHECK(device.transfer(fast, slow, 64).ok());  // through the host: two domains
  CHECK(device.copyout(absl::MakeSpan(host), fast).ok());
  CHECK(host.front() == std::byte{9});
  CHECK(device.copyout(absl::MakeSpan(host), view).ok());
  CHECK(device.addr(view)->value == device.addr(slow)->value + 8);
  CHECK(device.free(fast, 80).ok());
  CHECK(Find<MockControl>(two.first)->live_blocks() == 0);
  CHECK(Find<MockControl>(two.second)->live_blocks() == 1);
  CHECK(device.free(slow, 64).ok());
  CHECK(control->second_bytes() == 0);
  CHECK(Find<MockControl>(two.second)->live_blocks() == 0);
  CHECK(two.misuses() == 0);
}

TEST_CASE("Fallback only where the first is exhausted; both messages where both are") {
  const Two two({.name = "FAST", .capacity_bytes = 100}, {.name = "SLOW", .capacity_bytes = 200});
  const PackedAllocator device = *Fallback(*Pack(two.first), *Pack(two.second));
  Find<MockControl>(two.first)->FailNth(Member::kAlloc, 1, absl::UnavailableError("lost"));
  CHECK(device.alloc(64).status().code() == absl::StatusCode::kUnavailable);
  const absl::Status both = device.alloc(300).status();
  CHECK(both.code() == kExhausted);
  CHECK(absl::StrContains(both.message(), "FAST"));
  CHECK(absl::StrContains(both.message(), "SLOW"));
}

TEST_CASE("Fallback where the second's free fails or throws, and where addr throws at alloc") {
  const Two two;
  const auto second = Find<MockControl>(two.second);
  const PackedAllocator device = *Fallback(*Pack(two.first), *Pack(two.second));
  const auto control = Find<FallbackControl>(device);
  const AnyBuf slow = *device.alloc(200);
  second->FailNth(Member::kFree, 1, absl::UnavailableError("busy"));
  CHECK(device.free(slow, 200).code() == absl::StatusCode::kUnavailable);
  second->ThrowNth(Member::kFree, 1, Thrown());
  CHECK_THROWS_AS(device.free(slow, 200).IgnoreError(), std::runtime_error);
  CHECK(control->second_bytes() == 200);
  CHECK(device.free(slow, 200).ok());
  second->ThrowNth(Member::kAddr, 1, Thrown());
  CHECK_THROWS_AS(device.alloc(200).IgnoreError(), std::runtime_error);
  CHECK(control->second_bytes() == 0);
  CHECK(second->live_blocks() == 0);
}

TEST_CASE("Fallback refuses two that do not fit") {
  const PackedAllocator cpu = *Pack(CpuAllocator());
  const PackedAllocator mock = *Pack(MockAllocator());
  CHECK(Fallback(cpu, mock).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(Fallback(mock, *Pack(MockAllocator({.address_is_pointer = false}))).status().code() ==
        absl::StatusCode::kInvalidArgument);
  CHECK(Fallback(cpu, PackedAllocator()).status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK(Limited(PackedAllocator(), 1).status().code() == absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace packalloc
