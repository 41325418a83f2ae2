// Layers that a user writes over ours: they take buffers ahead, allocate elsewhere meanwhile, use another thread, and
// cut buffers in two. A layer below must know each buffer again, whichever order it comes back in.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "packalloc/backends/mock.h"
#include "packalloc/backends/null.h"
#include "packalloc/layers/checked.h"
#include "packalloc/layers/fallback.h"
#include "packalloc/layers/lru.h"
#include "packalloc/layers/traced.h"
#include "test/temp_dir.h"

namespace packalloc {
namespace {

using UserLayer = std::function<AnyRecord(AnyRecord)>;

PackedAllocator Over(const PackedAllocator& device, const UserLayer& layer) {
  return *ApplyLayer(device, [&](AnyRecord inner) -> absl::StatusOr<AnyRecord> { return layer(std::move(inner)); });
}

// Takes four buffers of a size at a time and hands them out one by one, the last first.
AnyRecord TakeAhead(AnyRecord inner) {
  AnyRecord layered = inner;
  auto stock = std::make_shared<std::map<std::size_t, std::vector<AnyBuf>>>();
  layered.alloc = [inner, stock](std::size_t nbytes, const BufferSpec& spec) -> absl::StatusOr<AnyBuf> {
    std::vector<AnyBuf>& ready = (*stock)[nbytes];
    for (absl::StatusOr<AnyBuf> buf; ready.size() < 4; ready.push_back(*buf)) {
      if (buf = inner.alloc(nbytes, spec); !buf.ok()) {
        if (ready.empty()) return buf;
        break;
      }
    }
    const AnyBuf last = ready.back();
    ready.pop_back();
    return last;
  };
  return layered;
}

// Allocates and frees `count` buffers of another allocator before it returns.
UserLayer AllocatesElsewhere(const PackedAllocator& other, int count) {
  return [other, count](AnyRecord inner) {
    AnyRecord layered = inner;
    layered.alloc = [=](std::size_t nbytes, const BufferSpec& spec) {
      absl::StatusOr<AnyBuf> buf = inner.alloc(nbytes, spec);
      for (int i = 0; i < count; ++i) CHECK(other.free(*other.alloc(16), 16).ok());
      return buf;
    };
    return layered;
  };
}

// Allocates and frees on a thread of its own.
AnyRecord OnAnotherThread(AnyRecord inner) {
  AnyRecord layered = inner;
  layered.alloc = [inner](std::size_t nbytes, const BufferSpec& spec) {
    absl::StatusOr<AnyBuf> buf;
    std::thread([&] { buf = inner.alloc(nbytes, spec); }).join();
    return buf;
  };
  layered.free = [inner](const AnyBuf& buf, std::size_t nbytes, const BufferSpec& spec) {
    absl::Status freed;
    std::thread([&] { freed = inner.free(buf, nbytes, spec); }).join();
    return freed;
  };
  return layered;
}

// Keeps up to ten freed buffers and hands out the one that was freed first.
AnyRecord FreeList(AnyRecord inner) {
  AnyRecord layered = inner;
  auto list = std::make_shared<std::deque<std::pair<AnyBuf, std::size_t>>>();
  layered.alloc = [inner, list](std::size_t nbytes, const BufferSpec& spec) -> absl::StatusOr<AnyBuf> {
    for (auto it = list->begin(); it != list->end(); ++it) {
      if (it->second != nbytes) continue;
      const AnyBuf buf = it->first;
      list->erase(it);
      return buf;
    }
    return inner.alloc(nbytes, spec);
  };
  layered.free = [inner, list](const AnyBuf& buf, std::size_t nbytes, const BufferSpec& spec) {
    if (list->size() == 10) return inner.free(buf, nbytes, spec);
    list->emplace_back(buf, nbytes);
    return absl::OkStatus();
  };
  return layered;
}

// Cuts each buffer of the inner record in two and gives it back when both halves are free.
AnyRecord InHalves(AnyRecord inner) {
  struct Whole {
    AnyBuf buf;
    int in_use = 2;
  };
  struct State {
    std::vector<AnyBuf> spare;
    std::map<std::pair<std::uint64_t, std::uintptr_t>, std::shared_ptr<Whole>> whole_of;  // by number and address
  };
  AnyRecord layered = inner;
  auto state = std::make_shared<State>();
  layered.alloc = [inner, state](std::size_t nbytes, const BufferSpec& spec) -> absl::StatusOr<AnyBuf> {
    if (state->spare.empty()) {
      absl::StatusOr<AnyBuf> buf = inner.alloc(2 * nbytes, spec);
      if (!buf.ok()) return buf;
      auto whole = std::make_shared<Whole>(Whole{*buf});
      for (const std::size_t at : {std::size_t{0}, nbytes}) {
        state->spare.push_back(*inner.offset(*buf, nbytes, at));
        const AnyBuf& half = state->spare.back();
        state->whole_of[{half.serial(), inner.addr(half).value}] = whole;
      }
    }
    const AnyBuf half = state->spare.back();
    state->spare.pop_back();
    return half;
  };
  layered.free = [inner, state](const AnyBuf& buf, std::size_t nbytes, const BufferSpec& spec) {
    const auto it = state->whole_of.find({buf.serial(), inner.addr(buf).value});
    REQUIRE(it != state->whole_of.end());
    const std::shared_ptr<Whole> whole = it->second;
    state->whole_of.erase(it);
    return --whole->in_use == 0 ? inner.free(whole->buf, 2 * nbytes, spec) : absl::OkStatus();
  };
  return layered;
}

using NamedLayer = std::pair<std::string, UserLayer>;

std::vector<NamedLayer> UserLayers() {
  const PackedAllocator other = *Pack(NullAllocator());
  return {{"take ahead", TakeAhead},
          {"17 elsewhere", AllocatesElsewhere(other, 17)},
          {"15,000 elsewhere", AllocatesElsewhere(other, 15'000)},
          {"another thread", OnAnotherThread},
          {"a free list", FreeList},
          {"in halves", InHalves}};
}

// Every buffer has bytes of its own, goes through every member, and can be freed in an order of its own.
void UseMany(const PackedAllocator& device) {
  for (int round = 0; round < 3; ++round) {
    std::vector<AnyBuf> live;
    for (int i = 0; i < 8; ++i) {
      live.push_back(*device.alloc(64));
      const std::vector<std::byte> bytes(64, static_cast<std::byte>(i));
      CHECK(device.copyin(live.back(), bytes).ok());
    }
    for (const std::size_t i : {3, 0, 7, 1, 6, 2, 5, 4}) {
      std::vector<std::byte> bytes(32);
      const absl::StatusOr<AnyBuf> view = device.offset(live[i], 32, 16);
      REQUIRE(view.ok());
      CHECK(device.copyout(absl::MakeSpan(bytes), *view).ok());
      CHECK(bytes == std::vector<std::byte>(32, static_cast<std::byte>(i)));
      CHECK(device.addr(live[i])->value != 0);
      const absl::Status freed = device.free(live[i], 64);
      CHECK_MESSAGE(freed.ok(), freed.ToString());
    }
  }
}

TEST_CASE("Checked knows each buffer again under a user's layer") {
  for (const NamedLayer& user : UserLayers()) {
    const std::string& name = user.first;
    const UserLayer& layer = user.second;
    CAPTURE(name);
    const Allocator<MockBuf> record = MockAllocator();
    std::vector<std::string> faults;
    CheckedOptions options;
    options.on_fault = [&](const CheckedReport& report) {
      if (report.fault != CheckedFault::kLeak) faults.push_back(report.message);
    };
    {
      const PackedAllocator device = Over(*Checked(*Pack(record), options), layer);
      UseMany(device);
    }
    CHECK(faults.empty());
    CHECK(Find<MockControl>(record)->misuses().empty());
  }
}

TEST_CASE("Checked finds a use after free under a user's layer") {
  std::vector<CheckedFault> faults;
  CheckedOptions options;
  options.on_fault = [&](const CheckedReport& report) { faults.push_back(report.fault); };
  const PackedAllocator device =
      Over(*Checked(*Pack(MockAllocator()), options), AllocatesElsewhere(*Pack(NullAllocator()), 17));
  const AnyBuf buf = *device.alloc(64);
  CHECK(device.free(buf, 64).ok());
  const AnyBuf later = *device.alloc(64);
  CHECK(device.copyin(buf, std::vector<std::byte>(64)).code() == absl::StatusCode::kFailedPrecondition);
  CHECK(faults == std::vector<CheckedFault>{CheckedFault::kUseAfterFree});
  CHECK(device.free(later, 64).ok());
}

TEST_CASE("Checked over a user's layer tells parts of one buffer apart") {
  std::vector<CheckedFault> faults;
  CheckedOptions options;
  options.on_fault = [&](const CheckedReport& report) { faults.push_back(report.fault); };
  const PackedAllocator device =
      *Checked(Over(*Fallback(*Pack(MockAllocator()), *Pack(MockAllocator())), InHalves), options);
  UseMany(device);
  CHECK(faults.empty());
  const AnyBuf a = *device.alloc(64), b = *device.alloc(64);
  CHECK(device.free(a, 64).ok());
  CHECK(device.copyin(b, std::vector<std::byte>(64)).ok());
  CHECK(device.free(a, 64).code() == absl::StatusCode::kFailedPrecondition);
  CHECK(faults == std::vector<CheckedFault>{CheckedFault::kDoubleFree});
  CHECK(device.free(b, 64).ok());
}

TEST_CASE("Fallback sends each buffer to the record that made it under a user's layer") {
  for (const NamedLayer& user : UserLayers()) {
    const std::string& name = user.first;
    const UserLayer& layer = user.second;
    CAPTURE(name);
    MockOptions small;
    small.capacity_bytes = 128;
    const Allocator<MockBuf> first = MockAllocator(small);
    const Allocator<MockBuf> second = MockAllocator();
    UseMany(Over(*Fallback(*Pack(first), *Pack(second)), layer));
    CHECK(Find<MockControl>(first)->misuses().empty());
    CHECK(Find<MockControl>(second)->misuses().empty());
  }
}

// Pointer of each "allocate" and "free", in order.
std::map<std::string, std::vector<std::string>> TraceOf(const std::string& path) {
  std::map<std::string, std::vector<std::string>> pointers;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> fields = absl::StrSplit(line, ',');
    REQUIRE(fields.size() == 7);
    pointers[fields[2]].push_back(fields[3]);
  }
  return pointers;
}

TEST_CASE("Traced writes as many frees as allocations under a cache, and names the right pointers") {
  const TempDir dir;
  const std::string path = dir / "t.csv";
  {
    const PackedAllocator device = *Lru(*Traced(*Pack(NullAllocator()), {.file = path}));
    const AnyBuf a = *device.alloc(64);
    const AnyBuf b = *device.alloc(64);
    CHECK(device.free(b, 64).ok());
    CHECK(device.free(a, 64).ok());
    CHECK(device.free(*device.alloc(64), 64).ok());
    CHECK(Find<LruControl>(device)->Clear().ok());
    CHECK(Find<TracedControl>(device)->Flush().ok());
  }
  std::map<std::string, std::vector<std::string>> pointers = TraceOf(path);
  REQUIRE(pointers["allocate"].size() == 2);
  REQUIRE(pointers["free"].size() == 2);
  std::vector<std::string> made = pointers["allocate"], freed = pointers["free"];
  std::sort(made.begin(), made.end());
  std::sort(freed.begin(), freed.end());
  CHECK(made == freed);
}

TEST_CASE("Traced follows every buffer under a user's layer") {
  for (const NamedLayer& user : UserLayers()) {
    const std::string& name = user.first;
    const UserLayer& layer = user.second;
    if (name == "take ahead" || name == "a free list") continue;  // which keep some at the end
    CAPTURE(name);
    const TempDir dir;
    const std::string path = dir / "t.csv";
    UseMany(Over(*Traced(*Pack(MockAllocator()), {.file = path}), layer));
    std::map<std::string, std::vector<std::string>> pointers = TraceOf(path);
    CHECK(pointers["allocate"].size() == pointers["free"].size());
    CHECK(!pointers["free"].empty());
  }
}

TEST_CASE("a serial number is given once, and kept by the boxes further out") {
  const PackedAllocator inner = *Checked(*Pack(NullAllocator()));
  std::uint64_t given = 0;
  const PackedAllocator device = Over(inner, [&](AnyRecord below) {
    AnyRecord layered = below;
    layered.alloc = [below, &given](std::size_t nbytes, const BufferSpec& spec) {
      absl::StatusOr<AnyBuf> buf = below.alloc(nbytes, spec);
      given = buf->serial();
      return buf;
    };
    return layered;
  });
  const AnyBuf a = *device.alloc(64);
  CHECK(given != 0);
  CHECK(a.serial() == given);
  CHECK(device.free(a, 64).ok());
  // A cache's hit is a new buffer, though at the same place.
  const PackedAllocator cached = *Lru(*Pack(NullAllocator()));
  const AnyBuf before = *cached.alloc(64);
  CHECK(cached.free(before, 64).ok());
  const AnyBuf after = *cached.alloc(64);
  CHECK(cached.addr(after)->value == cached.addr(before)->value);
  CHECK(after.serial() != before.serial());
  CHECK(cached.free(after, 64).ok());
}

}  // namespace
}  // namespace packalloc
