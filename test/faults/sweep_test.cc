// Each scenario with each call of each member of the device failed, one at a time, by a status and by an exception,
// until a run has no failure any more: nothing leaks, no counter is left wrong, and the next calls work.
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "packalloc/backends/mock.h"
#include "packalloc/buffer.h"
#include "packalloc/copy.h"
#include "packalloc/layers/checked.h"
#include "packalloc/layers/counted.h"
#include "packalloc/layers/failing.h"
#include "packalloc/layers/fallback.h"
#include "packalloc/layers/limited.h"
#include "packalloc/layers/lru.h"
#include "packalloc/layers/traced.h"
#include "test/temp_dir.h"

namespace packalloc {
namespace {

// Members that no scenario can call, with the reason. One that is swept all the same must go from here.
const std::map<std::string, std::string> kNotSwept = {};

// Calls, whatever comes of it.
template <typename Call>
bool Attempt(const Call& call) {
  try {
    return call().ok();
  } catch (const std::runtime_error&) {
    return false;
  }
}

// An error leaves a buffer as it was, so that it can be freed again.
void Release(const PackedAllocator& device, const AnyBuf& buf, std::size_t nbytes, const BufferSpec& spec) {
  const auto free = [&] { return device.free(buf, nbytes, spec); };
  if (!Attempt(free)) CHECK_MESSAGE(Attempt(free), "the second free failed too");
}

// Every operation, on what of it works.
void Operations(const PackedAllocator& device) {
  std::vector<std::byte> host(1000, std::byte{1});
  const DiskExtent extent{nullptr, 0, 100};
  struct Held {
    AnyBuf buf;
    std::size_t nbytes;
    BufferSpec spec;
  };
  std::vector<Held> held;
  const auto alloc = [&](std::size_t nbytes, const BufferSpec& spec) {
    Attempt([&] {
      absl::StatusOr<AnyBuf> buf = device.alloc(nbytes, spec);
      if (buf.ok()) held.push_back({*buf, nbytes, spec});
      return buf.status();
    });
  };
  for (int round = 0; round < 2; ++round) {
    alloc(1000, {});
    alloc(1000, {.host = true});
    alloc(700, {.zero = true});
    alloc(1000, {.external_ptr = reinterpret_cast<std::uintptr_t>(host.data())});
    for (const Held& one : held) {
      Attempt([&] { return device.copyin(one.buf, absl::MakeConstSpan(host).first(500)); });
      Attempt([&] { return device.addr(one.buf).status(); });
      Attempt([&] { return device.host_ptr(one.buf).status(); });
      Attempt([&] { return device.copy_from_disk(one.buf, extent, 100); });
      Attempt([&] {
        const absl::StatusOr<AnyBuf> view = device.offset(one.buf, 100, 50);
        return view.ok() ? device.transfer(held.front().buf, *view, 100) : view.status();
      });
      std::vector<std::byte> out(500);
      Attempt([&] { return device.copyout(absl::MakeSpan(out), one.buf); });
    }
    Attempt([&] { return device.memory_info().status(); });
    Attempt([&] { return device.synchronize(); });
    for (const Held& one : held) Release(device, one.buf, one.nbytes, one.spec);
    held.clear();
  }
}

void Buffers(const PackedAllocator& device) {
  const Buffer a(device, 3000);
  const Buffer b(device, 3000, {.host = true});
  std::vector<std::byte> host(3000, std::byte{2});
  Attempt([&] { return a.CopyIn(host); });
  Attempt([&] {
    const absl::StatusOr<Buffer> view = a.View(100, 7);
    return view.ok() ? view->CopyIn(absl::MakeConstSpan(host).first(100)) : view.status();
  });
  Attempt([&] { return b.CopyFrom(a).status(); });
  Attempt([&] { return b.CopyOut(absl::MakeSpan(host)); });
  Attempt([&] { return a.Deallocate(); });
  Attempt([&] { return a.EnsureAllocated(); });
}

// Between two devices that share nothing, in chunks.
void Staged(const PackedAllocator& device) {
  const PackedAllocator other = *Pack(MockAllocator({.host_accessible = false}));
  const Buffer here(device, 5000);
  const Buffer there(other, 5000);
  std::vector<std::byte> host(5000, std::byte{3});
  CHECK(there.CopyIn(host).ok());
  Attempt([&] { return here.CopyFrom(there, {.staging_bytes = 1000}).status(); });
  Attempt([&] { return there.CopyFrom(here, {.staging_bytes = 1000}).status(); });
}

struct Scenario {
  std::string name;
  std::function<absl::StatusOr<PackedAllocator>(const PackedAllocator&)> stack;
  std::function<void(const PackedAllocator&)> use;
  // Its buffers are released by destructors, which have nobody to tell where that fails, and do not try again.
  bool by_destructors = false;
};

std::vector<Scenario> Scenarios(const std::string& folder) {
  const auto bare = [](const PackedAllocator& device) { return absl::StatusOr<PackedAllocator>(device); };
  const TracedOptions trace{.file = folder + "/trace.csv"};
  return {
      {"packed", bare, Operations},
      {"Buffer", bare, Buffers, true},
      // A cache that checks frees refuses one whose address it cannot learn, which no destructor tries again.
      {"Buffer over the cache", [](const PackedAllocator& d) { return Lru(d, {.check_frees = false}); }, Buffers, true},
      {"staged copies", bare, Staged, true},
      {"Lru", [](const PackedAllocator& d) { return Lru(d); }, Operations},
      {"Lru that checks frees", [](const PackedAllocator& d) { return Lru(d, {.check_frees = true}); }, Operations},
      {"Lru that evicts", [](const PackedAllocator& d) { return Lru(d, {.max_bytes = 1500}); }, Operations},
      {"Lru, trimmed", [](const PackedAllocator& d) { return Lru(d); },
       [](const PackedAllocator& d) {
         Operations(d);
         Attempt([&] { return Find<LruControl>(d)->Trim(500); });
         Operations(d);
         Attempt([&] { return Find<LruControl>(d)->Clear(); });
       }},
      {"Checked", [](const PackedAllocator& d) { return Checked(d, {.stack_depth = 0}); }, Operations},
      {"Checked over Lru", [](const PackedAllocator& d) { return Checked(*Lru(d), {.stack_depth = 0}); }, Operations},
      {"Checked, Buffer", [](const PackedAllocator& d) { return Checked(d, {.stack_depth = 0}); }, Buffers, true},
      {"Traced", [=](const PackedAllocator& d) { return Traced(d, trace); }, Operations},
      {"Limited", [](const PackedAllocator& d) { return Limited(d, 100000); }, Operations},
      {"Counted", [](const PackedAllocator& d) { return Counted(d, {.by_thread = true}); }, Operations},
      {"Failing", [](const PackedAllocator& d) { return Failing(d); }, Operations},
      {"Fallback, first", [](const PackedAllocator& d) { return Fallback(d, *Pack(MockAllocator())); }, Operations},
      {"Fallback, second",
       [](const PackedAllocator& d) { return Fallback(*Pack(MockAllocator({.capacity_bytes = 0})), d); }, Operations},
      {"all of them",
       [=](const PackedAllocator& d) {
         return Traced(*Counted(*Checked(*Lru(*Limited(*Failing(d), 100000)), {.stack_depth = 0})), trace);
       },
       Operations},
  };
}

MockOptions Device(bool lazy) {
  return {.lazy = lazy, .read_extent = [](absl::Span<std::byte>, const DiskExtent&) { return absl::OkStatus(); }};
}

// One run. Whether the failure came to pass.
bool Run(const Scenario& scenario, bool lazy, Member call, std::uint64_t nth, bool throws) {
  const Allocator<MockBuf> record = MockAllocator(Device(lazy));
  const std::shared_ptr<MockControl> mock = Find<MockControl>(record);
  std::size_t lost = 0;  // to frees that failed and that nobody could try again
  std::uint64_t calls = 0;
  {
    const PackedAllocator device = *scenario.stack(*Pack(record));
    const std::size_t before = mock->log().Count(call);
    if (throws) {
      mock->ThrowNth(call, nth, std::make_exception_ptr(std::runtime_error("injected")));
    } else {
      mock->FailNth(call, nth, absl::UnavailableError("injected"));
    }
    scenario.use(device);
    mock->ClearFailures();
    calls = mock->log().Count(call) - before;
    if (scenario.by_destructors && call == Member::kFree && calls >= nth) lost = 1;

    // The counters are as before, and everything works.
    if (const auto lru = Find<LruControl>(device)) {
      CHECK(lru->stats().in_use_bytes == 0);
      lost += lru->stats().failed_frees;
      CHECK(lru->Clear().ok());
      CHECK(lru->stats().cached_bytes == 0);
    }
    if (const auto counted = Find<CountedControl>(device)) CHECK(counted->counts().current_bytes == 0);
    if (const auto limited = Find<LimitedControl>(device)) {
      if (!Find<LruControl>(device)) CHECK(limited->used_bytes() == 0);
    }
    if (const auto checked = Find<CheckedControl>(device)) {
      CHECK(checked->stats().live_buffers <= lost);
      CHECK(checked->stats().faults == 0);
    }
    const absl::StatusOr<AnyBuf> buf = device.alloc(64);
    REQUIRE(buf.ok());
    std::vector<std::byte> bytes(64, std::byte{4});
    std::vector<std::byte> read(64);
    CHECK(device.copyin(*buf, bytes).ok());
    CHECK(device.copyout(absl::MakeSpan(read), *buf).ok());
    CHECK(read == bytes);
    CHECK(device.free(*buf, 64).ok());
  }
  CHECK(mock->live_blocks() <= lost);
  CHECK(mock->misuses().empty());
  return calls >= nth;
}

TEST_CASE("every call of every member fails once, by status and by exception") {
  const TempDir dir;
  std::array<std::uint64_t, kMembers> swept{};
  for (const Scenario& scenario : Scenarios(dir.path())) {
    CAPTURE(scenario.name);
    for (std::size_t member = 0; member < kMembers; ++member) {
      const auto call = static_cast<Member>(member);
      CAPTURE(std::string(ToString(call)));
      for (const bool lazy : {false, true}) {
        for (const bool throws : {false, true}) {
          CAPTURE(throws);
          std::uint64_t nth = 1;
          for (; Run(scenario, lazy, call, nth, throws); ++nth) {
            REQUIRE(nth < 10000);
          }
          swept[member] += nth - 1;
        }
      }
    }
  }
  std::cout << "failed calls swept per member:\n";
  for (std::size_t member = 0; member < kMembers; ++member) {
    const std::string name(ToString(static_cast<Member>(member)));
    const auto reason = kNotSwept.find(name);
    std::cout << "  " << name << " " << swept[member] << (reason == kNotSwept.end() ? "" : " (" + reason->second + ")")
              << "\n";
    CHECK_MESSAGE((swept[member] > 0) == (reason == kNotSwept.end()), name);
  }
}

}  // namespace
}  // namespace packalloc
