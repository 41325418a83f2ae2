#include "packalloc/buffer.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "packalloc/backends/cpu.h"
#include "packalloc/packed_allocator.h"
#include "test/fake_record.h"

namespace packalloc {
namespace {

using Code = absl::StatusCode;

std::vector<std::byte> Bytes(std::size_t n, int value) {
  return std::vector<std::byte>(n, static_cast<std::byte>(value));
}

std::vector<std::byte> Read(const Buffer& buffer) {
  std::vector<std::byte> bytes(buffer.nbytes());
  REQUIRE(buffer.CopyOut(absl::MakeSpan(bytes)).ok());
  return bytes;
}

// A fake record, packed, and at the end the check that all of its memory came back, once.
struct FakeDevice {
  std::shared_ptr<Fake> fake = std::make_shared<Fake>();
  PackedAllocator packed = *Pack(FakeRecord(fake));
  ~FakeDevice() {
    CHECK(fake->live.empty());
    CHECK(fake->foreign_frees == 0);
    CHECK(fake->allocs == fake->frees);
  }
};

TEST_CASE("a buffer allocates at first use, once, and frees itself") {
  FakeDevice device;
  {
    Buffer buffer(device.packed, 64, {.nolru = true});
    CHECK(buffer.nbytes() == 64);
    CHECK(buffer.spec() == BufferSpec{.nolru = true});
    CHECK(buffer.device() == "FAKE");
    CHECK(buffer.allocator() == device.packed);
    CHECK(buffer.id() != 0);
    CHECK(buffer.base_id() == buffer.id());
    CHECK(buffer.base() == buffer);
    CHECK(buffer.offset() == 0);
    CHECK_FALSE(buffer.is_allocated());
    CHECK_FALSE(buffer.is_initialized());
    CHECK(buffer.generation() == 0);
    CHECK(device.fake->allocs == 0);

    CHECK(buffer.CopyIn(Bytes(64, 5)).ok());
    CHECK(buffer.is_allocated());
    CHECK(buffer.is_initialized());
    CHECK(Read(buffer) == Bytes(64, 5));
    CHECK(buffer.EnsureAllocated().ok());
    CHECK(buffer.Allocate().code() == Code::kFailedPrecondition);
    CHECK(device.fake->allocs == 1);
    CHECK(buffer.generation() == 1);

    CHECK(buffer.Deallocate().ok());
    CHECK(device.fake->frees == 1);
    CHECK_FALSE(buffer.is_allocated());
    CHECK(buffer.Deallocate().code() == Code::kFailedPrecondition);
    CHECK(buffer.Allocate().ok());
    CHECK(buffer.generation() == 2);
  }
  CHECK(device.fake->frees == 2);
}

TEST_CASE("copies are the same buffer, others have other ids") {
  FakeDevice device;
  Buffer a(device.packed, 8);
  Buffer copy = a;
  Buffer b(device.packed, 8);
  CHECK(copy == a);
  CHECK(copy.id() == a.id());
  CHECK(b != a);
  CHECK(b.id() != a.id());
  CHECK(copy.EnsureAllocated().ok());
  CHECK(a.is_allocated());
  a = Buffer();
  CHECK(device.fake->frees == 0);
  CHECK(copy.CopyIn(Bytes(8, 1)).ok());
}

TEST_CASE("an empty buffer answers everything and does nothing") {
  FakeDevice device;
  Buffer from(device.packed, 8);
  const Buffer to = std::move(from);
  for (const Buffer& empty : {Buffer(), from}) {  // NOLINT(bugprone-use-after-move)
    CHECK_FALSE(empty);
    CHECK(empty.nbytes() == 0);
    CHECK(empty.spec() == BufferSpec{});
    CHECK_FALSE(empty.allocator());
    CHECK(empty.id() == 0);
    CHECK(empty.base_id() == 0);
    CHECK_FALSE(empty.base());
    CHECK(empty.offset() == 0);
    CHECK_FALSE(empty.is_allocated());
    CHECK_FALSE(empty.is_initialized());
    CHECK(empty.generation() == 0);
    CHECK_FALSE(empty.supports_offset());
    CHECK_FALSE(empty.supports_transfer(to));
    for (const absl::Status& status :
         {empty.Allocate(), empty.EnsureAllocated(), empty.Deallocate(), empty.View(0, 0).status(), empty.CopyIn({}),
          empty.CopyOut({}), empty.addr().status(), empty.host_ptr().status(), empty.handle().status()}) {
      CHECK(status.code() == Code::kFailedPrecondition);
    }
  }
  const Buffer nowhere(PackedAllocator(), 8);
  CHECK(nowhere.Allocate().code() == Code::kFailedPrecondition);
  CHECK(nowhere.View(4, 0).status().code() == Code::kUnimplemented);
}

TEST_CASE("views: bytes of the base, relative to the view they were made from, bounds-checked") {
  FakeDevice device;
  constexpr std::size_t kMax = std::numeric_limits<std::size_t>::max();
  const Buffer base(device.packed, 4096);
  const Buffer small(device.packed, 64);
  CHECK(small.View(8, 64).status().code() == Code::kOutOfRange);
  CHECK(small.View(kMax - 4, 8).status().code() == Code::kOutOfRange);
  CHECK(small.View(2, kMax).status().code() == Code::kOutOfRange);
  CHECK(small.View(0, 64).ok());

  const Buffer v = *base.View(1024, 256);
  const Buffer w = *v.View(64, 128);
  CHECK(v.View(64, 1016).status().code() == Code::kOutOfRange);
  CHECK(w.offset() == 384);
  CHECK(w.nbytes() == 64);
  CHECK(w.base() == base);
  CHECK(w.base_id() == base.id());
  CHECK(w.id() != v.id());
  CHECK(w.id() != base.id());
  CHECK(device.fake->allocs == 0);

  CHECK_FALSE(w.is_allocated());
  CHECK(w.CopyIn(Bytes(64, 7)).ok());  // allocates the base
  CHECK(base.is_initialized());
  CHECK(w.is_initialized());
  CHECK(v.is_allocated());
  CHECK_FALSE(v.is_initialized());
  const std::vector<std::byte> all = Read(base);
  CHECK(std::all_of(all.begin() + 384, all.begin() + 448, [](std::byte b) { return b == std::byte{7}; }));
  CHECK(w.addr()->value == base.addr()->value + 384);
  CHECK(w.CopyIn(Bytes(65, 1)).code() == Code::kOutOfRange);
  CHECK(w.generation() == base.generation());
}

TEST_CASE("a view keeps its base alive, and its end releases it once") {
  FakeDevice device;
  auto base = std::make_unique<Buffer>(device.packed, 8192);
  auto view = std::make_unique<Buffer>(*base->View(4096, 4096));
  CHECK(view->CopyIn(Bytes(4096, 0xAA)).ok());
  base.reset();
  CHECK(device.fake->frees == 0);
  Buffer other(device.packed, 8192);
  CHECK(other.CopyIn(Bytes(8192, 0x55)).ok());
  CHECK(Read(*view) == Bytes(4096, 0xAA));
  CHECK(view->base().nbytes() == 8192);
  view.reset();
  CHECK(device.fake->frees == 1);
}

TEST_CASE("a base refuses to be deallocated while views of it are") {
  FakeDevice device;
  const Buffer base(device.packed, 64);
  Buffer v = *base.View(8, 8);
  Buffer w = *v.View(4, 4);
  CHECK(v.Deallocate().code() == Code::kFailedPrecondition);
  CHECK(v.Allocate().ok());
  CHECK(w.Allocate().ok());
  CHECK(base.Deallocate().code() == Code::kFailedPrecondition);
  CHECK(base.Deallocate().message().find("2 allocated views or tensors") != absl::string_view::npos);
  CHECK(base.CopyIn(Bytes(64, 3)).ok());
  CHECK(v.Deallocate().ok());
  CHECK_FALSE(v.is_initialized());
  CHECK(v.is_allocated());
  CHECK(v.Deallocate().code() == Code::kFailedPrecondition);
  CHECK(base.Deallocate().code() == Code::kFailedPrecondition);
  w = Buffer();  // dropped rather than deallocated
  CHECK(base.Deallocate().ok());
  CHECK_FALSE(v.is_allocated());
  CHECK(v.CopyIn(Bytes(8, 1)).ok());  // allocates both again
  CHECK(v.generation() == 2);
  CHECK(device.fake->allocs == 2);
}

TEST_CASE("a failed view leaves nothing counted") {
  FakeDevice device;
  const Buffer base(device.packed, 64);
  const Buffer view = *base.View(8, 8);
  device.fake->on_offset = [] { return absl::InternalError("no"); };
  CHECK(view.Allocate().code() == Code::kInternal);
  device.fake->on_offset = []() -> absl::Status { throw 42; };
  CHECK_THROWS_AS(view.Allocate().IgnoreError(), int);
  CHECK_FALSE(view.is_initialized());
  CHECK(base.Deallocate().ok());
  device.fake->on_offset = [] { return absl::OkStatus(); };
  CHECK(view.Allocate().ok());
}

TEST_CASE("no views where the backend has no offset") {
  FakeDevice device;
  Allocator<void*> record = FakeRecord(device.fake);
  record.offset = nullptr;
  const Buffer buffer(*Pack(record), 64);
  CHECK_FALSE(buffer.supports_offset());
  CHECK(buffer.View(8, 0).status().code() == Code::kUnimplemented);
  CHECK(buffer.View(65, 0).status().code() == Code::kOutOfRange);
}

TEST_CASE("zero bytes: all succeeds, the backend is not called") {
  FakeDevice device;
  const Buffer a(device.packed, 0);
  const Buffer b(device.packed, 0);
  CHECK(a.Allocate().ok());
  CHECK(a.is_initialized());
  CHECK(a.CopyIn({}).ok());
  CHECK(a.CopyOut({}).ok());
  CHECK(*a.addr() == DeviceAddress{});
  const Buffer view = *b.View(0, 0);
  CHECK(view.CopyIn({}).ok());
  CHECK(view.CopyIn(Bytes(1, 0)).code() == Code::kOutOfRange);
  CHECK(b.Deallocate().code() == Code::kFailedPrecondition);  // its view is allocated
  CHECK(a.Deallocate().ok());
  CHECK(device.fake->allocs == 0);
  CHECK(device.fake->copies == 0);
}

TEST_CASE("typed access: the backend's handle, and no other type") {
  const Buffer buffer(*Pack(CpuAllocator()), 100);
  absl::StatusOr<CpuBuf> typed = buffer.get<CpuBuf>();
  REQUIRE(typed.ok());
  CHECK(typed->nbytes == 100);
  CHECK(typed->data == *buffer.host_ptr());
  CHECK(buffer.addr()->value == reinterpret_cast<std::uintptr_t>(typed->data));
  CHECK(buffer.get<void*>().status().code() == Code::kInvalidArgument);
  CHECK(buffer.handle()->nbytes() == 100);
  CHECK(buffer.View(10, 20)->get<CpuBuf>()->data == typed->data + 20);
}

TEST_CASE("supports_transfer: inside one domain only") {
  FakeDevice device;
  const Buffer fake(device.packed, 4);
  const Buffer cpu(*Pack(CpuAllocator()), 4);
  const Buffer other_cpu(*Pack(CpuAllocator()), 4);
  CHECK(cpu.supports_transfer(other_cpu));
  CHECK(fake.supports_transfer(fake));
  CHECK_FALSE(cpu.supports_transfer(fake));
  CHECK_FALSE(fake.supports_transfer(Buffer(*Pack(FakeRecord(device.fake)), 4)));
}

TEST_CASE("errors of the allocator change nothing, and the next try may succeed") {
  FakeDevice device;
  const Buffer buffer(device.packed, 64);
  device.fake->on_alloc = [] { return absl::ResourceExhaustedError("full"); };
  CHECK(buffer.CopyIn(Bytes(64, 1)).code() == Code::kResourceExhausted);
  device.fake->on_alloc = []() -> absl::Status { throw std::runtime_error("driver"); };
  CHECK_THROWS_AS(buffer.Allocate().IgnoreError(), std::runtime_error);
  CHECK_FALSE(buffer.is_allocated());
  CHECK(buffer.generation() == 0);
  device.fake->on_alloc = [] { return absl::OkStatus(); };
  CHECK(buffer.Allocate().ok());

  device.fake->on_free = [] { return absl::InternalError("busy"); };
  CHECK(buffer.Deallocate().code() == Code::kInternal);
  device.fake->on_free = []() -> absl::Status { throw 42; };
  CHECK_THROWS_AS(buffer.Deallocate().IgnoreError(), int);
  CHECK(buffer.is_allocated());
  device.fake->on_free = [] { return absl::OkStatus(); };
  CHECK(buffer.Deallocate().ok());

  const Buffer bad(device.packed, 64, {.alignment = 3});
  CHECK(bad.Allocate().code() == Code::kInvalidArgument);
  const Buffer huge(device.packed, std::numeric_limits<std::size_t>::max() - 510);
  CHECK(huge.Allocate().code() == Code::kInvalidArgument);
}

TEST_CASE("allocate and fill where the fill throws: nothing leaks, other threads are served") {
  FakeDevice device;
  {
    const Buffer buffer(device.packed, 64);
    device.fake->on_copyin = []() -> absl::Status { throw std::runtime_error("copy"); };
    CHECK_THROWS_AS(buffer.CopyIn(Bytes(64, 1)).IgnoreError(), std::runtime_error);
    device.fake->on_copyin = [] { return absl::OkStatus(); };
    bool served = false;
    std::thread([&buffer, &served] { served = buffer.CopyIn(Bytes(64, 2)).ok(); }).join();
    CHECK(served);
    CHECK(device.fake->allocs == 1);
  }
  CHECK(device.fake->frees == 1);
}

TEST_CASE("a destructor contains whatever free does") {
  FakeDevice device;
  const auto destroy_one = [&device] {
    Buffer buffer(device.packed, 16);
    REQUIRE(buffer.Allocate().ok());
  };
  device.fake->on_free = [] { return absl::InternalError("lost"); };
  destroy_one();
  device.fake->on_free = []() -> absl::Status { throw std::runtime_error("lost"); };
  destroy_one();
  device.fake->on_free = []() -> absl::Status { throw 42; };
  destroy_one();
  CHECK(device.fake->live.size() == 3);  // as asked: free refused each
  for (void* block : device.fake->live) std::free(block);
  device.fake->live.clear();
  device.fake->frees = device.fake->allocs;
}

TEST_CASE("any order of destruction of allocator, base and views") {
  std::array<int, 4> order{0, 1, 2, 3};
  do {
    auto fake = std::make_shared<Fake>();
    auto packed = std::make_unique<PackedAllocator>(*Pack(FakeRecord(fake)));
    auto base = std::make_unique<Buffer>(*packed, 4096);
    auto view = std::make_unique<Buffer>(*base->View(100, 10));
    auto view_of_view = std::make_unique<Buffer>(*view->View(10, 1));
    REQUIRE(view->EnsureAllocated().ok());
    REQUIRE(view_of_view->EnsureAllocated().ok());
    for (std::size_t i = 0; i < order.size(); ++i) {
      if (order[i] == 0) packed.reset();
      if (order[i] == 1) base.reset();
      if (order[i] == 2) view.reset();
      if (order[i] == 3) view_of_view.reset();
      const bool in_use = base || view || view_of_view;
      CHECK(fake->frees == (in_use ? 0 : 1));
    }
    CHECK(fake->live.empty());
    CHECK(fake.use_count() == 1);  // the record's state went too
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("wrapped memory: the deleter runs once, at release, used or not") {
  FakeDevice device;
  std::array<std::byte, 64> memory{};
  int deleted = 0;
  const auto wrap = [&] { return Buffer::Wrap(device.packed, memory.data(), 64, [&deleted] { ++deleted; }); };

  SUBCASE("at the end of the last user, after the handle was let go") {
    {
      Buffer buffer = wrap();
      CHECK(buffer.spec().external_ptr == reinterpret_cast<std::uintptr_t>(memory.data()));
      CHECK(buffer.CopyIn(Bytes(64, 9)).ok());
      CHECK(memory[63] == std::byte{9});
      const Buffer view = *buffer.View(8, 8);
      REQUIRE(view.EnsureAllocated().ok());
      buffer = Buffer();
      CHECK(deleted == 0);
    }
    CHECK(device.fake->frees == 1);
    CHECK(deleted == 1);
  }
  SUBCASE("of a buffer that was never used") {
    wrap();
    CHECK(deleted == 1);
    CHECK(device.fake->allocs == 0);
  }
  SUBCASE("at Deallocate; then the memory is not ours any more") {
    {
      const Buffer buffer = wrap();
      REQUIRE(buffer.Allocate().ok());
      CHECK(buffer.Deallocate().ok());
      CHECK(deleted == 1);
      CHECK(buffer.Allocate().code() == Code::kFailedPrecondition);
      CHECK(buffer.CopyIn(Bytes(1, 1)).code() == Code::kFailedPrecondition);
    }
    CHECK(deleted == 1);
  }
  SUBCASE("not at a Deallocate that fails, but at the end all the same") {
    {
      const Buffer buffer = wrap();
      REQUIRE(buffer.Allocate().ok());
      device.fake->on_free = [] { return absl::InternalError("no"); };
      CHECK(buffer.Deallocate().code() == Code::kInternal);
      CHECK(deleted == 0);
    }
    CHECK(deleted == 1);
    device.fake->live.clear();
    device.fake->frees = device.fake->allocs;
  }
  SUBCASE("where the backend refused to wrap it") {
    {
      const Buffer buffer =
          Buffer::Wrap(device.packed, memory.data() + 1, 8, [&deleted] { ++deleted; }, {.alignment = 64});
      CHECK(buffer.Allocate().code() == Code::kInvalidArgument);
    }
    CHECK(deleted == 1);
  }
  SUBCASE("with its exception passed on by Deallocate, dropped in a destructor") {
    {
      const Buffer buffer = Buffer::Wrap(device.packed, memory.data(), 8, [&deleted] {
        ++deleted;
        throw std::runtime_error("deleter");
      });
      REQUIRE(buffer.Allocate().ok());
      CHECK_THROWS_AS(buffer.Deallocate().IgnoreError(), std::runtime_error);
      CHECK_FALSE(buffer.is_allocated());
    }
    CHECK(deleted == 1);
    {
      const Buffer unused = Buffer::Wrap(device.packed, memory.data(), 8, [&deleted] {
        ++deleted;
        throw 42;
      });
    }
    CHECK(deleted == 2);
  }
  SUBCASE("none: wrapped again as often as asked") {
    const Buffer buffer = Buffer::Wrap(device.packed, memory.data(), 8);
    for (int i = 0; i < 2; ++i) {
      CHECK(buffer.Allocate().ok());
      CHECK(buffer.Deallocate().ok());
    }
  }
}

TEST_CASE("wrapped memory is not given back while the device is still at work on it") {
  auto fake = std::make_shared<Fake>();
  Allocator<void*> record = FakeRecord(fake);
  bool pending = true;
  absl::Status answer = absl::InternalError("device lost");
  record.synchronize = [&pending, &answer] {
    pending = !answer.ok();
    return answer;
  };
  std::byte memory[8];
  bool pending_at_delete = true;
  const Buffer buffer =
      Buffer::Wrap(*Pack(record), memory, 8, [&pending, &pending_at_delete] { pending_at_delete = pending; });
  REQUIRE(buffer.Allocate().ok());
  CHECK(buffer.Deallocate().code() == Code::kInternal);
  CHECK(buffer.is_allocated());
  answer = absl::OkStatus();
  CHECK(buffer.Deallocate().ok());
  CHECK_FALSE(pending_at_delete);
}

TEST_CASE("an alloc that uses its own buffer gets an error, not a hang") {
  FakeDevice device;
  auto buffer = std::make_shared<Buffer>(device.packed, 64);
  absl::Status inner;
  absl::Status inner_free;
  device.fake->on_alloc = [&] {
    inner = buffer->EnsureAllocated();
    inner_free = buffer->Deallocate();
    return absl::OkStatus();
  };
  CHECK(buffer->Allocate().ok());
  CHECK(inner.code() == Code::kFailedPrecondition);
  CHECK(inner_free.code() == Code::kFailedPrecondition);
}

TEST_CASE("threads at first use, of the base and of views, allocate once") {
  for (int round = 0; round < 50; ++round) {
    FakeDevice device;
    const Buffer base(device.packed, 1024);
    std::vector<Buffer> views;
    for (std::size_t i = 0; i < 4; ++i) views.push_back(*base.View(256, i * 256));
    std::atomic<int> waiting{5};
    std::atomic<int> failures{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 5; ++i) {
      threads.emplace_back([&, i] {
        --waiting;
        while (waiting.load() != 0) std::this_thread::yield();
        const absl::Status used =
            i == 4 ? base.EnsureAllocated() : views[static_cast<std::size_t>(i)].CopyIn(Bytes(256, i));
        if (!used.ok()) ++failures;
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(failures == 0);
    CHECK(device.fake->allocs == 1);
    for (int i = 0; i < 4; ++i) CHECK(Read(views[static_cast<std::size_t>(i)]) == Bytes(256, i));
  }
}

TEST_CASE("a failure at first use reaches the thread that met it; the one that waited tries for itself") {
  FakeDevice device;
  const Buffer buffer(device.packed, 64);
  std::atomic<int> calls{0};
  device.fake->on_alloc = [&calls] {
    return calls.fetch_add(1) == 0 ? absl::ResourceExhaustedError("full") : absl::OkStatus();
  };
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      if (!buffer.EnsureAllocated().ok()) ++failures;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(failures == 1);
  CHECK(device.fake->allocs == 1);
  CHECK(buffer.is_allocated());
}

TEST_CASE("deallocating a base races with views of it: refused or allocated anew, never both") {
  FakeDevice device;
  const Buffer base(device.packed, 64);
  std::atomic<bool> stop{false};
  std::atomic<int> odd{0};
  std::thread views([&] {
    for (int i = 0; i < 2000; ++i) {
      const Buffer view = *base.View(8, 8);
      if (!view.Allocate().ok()) ++odd;
      // While the view has the base's bytes, they may not go.
      std::byte* const base_block = static_cast<std::byte*>(*view.get<void*>()) - 8;
      const std::lock_guard lock(device.fake->mutex);
      if (device.fake->live.count(base_block) == 0) ++odd;
    }
    stop = true;
  });
  while (!stop.load()) {
    const absl::Status freed = base.Deallocate();
    if (!freed.ok() && freed.code() != Code::kFailedPrecondition) ++odd;
  }
  views.join();
  CHECK(odd == 0);
}

}  // namespace
}  // namespace packalloc
