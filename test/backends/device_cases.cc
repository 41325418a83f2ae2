#include "test/backends/device_cases.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <future>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "packalloc/backends/cpu.h"
#include "packalloc/backends/disk.h"
#include "packalloc/backends/mock.h"
#include "packalloc/buffer.h"
#include "packalloc/copy.h"
#include "packalloc/layers/lru.h"
#include "packalloc/tensor/dlpack.h"
#include "packalloc/tensor/tensor.h"
#include "packalloc/tensor/tensor_pool.h"
#include "test/disk/faulty_disk.h"
#include "test/temp_dir.h"

namespace packalloc::testing {
namespace {

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = kKiB * kKiB;
constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max();

template <typename T>
T Ok(absl::StatusOr<T> value) {
  REQUIRE_MESSAGE(value.ok(), value.status().ToString());
  return *std::move(value);
}
void Ok(const absl::Status& status) { REQUIRE_MESSAGE(status.ok(), status.ToString()); }

absl::Span<const std::byte> Bytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

std::string Content(const PackedAllocator& device, const AnyBuf& buf) {
  std::string text(buf.nbytes(), '\0');
  Ok(device.copyout({reinterpret_cast<std::byte*>(text.data()), text.size()}, buf));
  return text;
}

void Free(const PackedAllocator& device, const AnyBuf& buf) { Ok(device.free(buf, buf.nbytes())); }

struct Cached {
  explicit Cached(const DeviceUnderTest& device, const LruOptions& options = {})
      : memory(Ok(Lru(device.open(), options))), control(Find<LruControl>(memory)) {}
  // Puts one free buffer of each size into the cache.
  void Keep(std::initializer_list<std::size_t> sizes) const {
    std::vector<AnyBuf> bufs;
    for (const std::size_t nbytes : sizes) bufs.push_back(Ok(memory.alloc(nbytes)));
    for (const AnyBuf& buf : bufs) Free(memory, buf);
  }
  LruStats stats() const { return control->stats(); }

  PackedAllocator memory;
  std::shared_ptr<LruControl> control;
};

// Another thread gets memory: no lock was left held.
bool ServesAnotherThread(const PackedAllocator& device) {
  auto served = std::async(std::launch::async, [&device] {
    const absl::StatusOr<AnyBuf> buf = device.alloc(64);
    return buf.ok() && device.free(*buf, 64).ok();
  });
  return served.wait_for(std::chrono::seconds(30)) == std::future_status::ready && served.get();
}

// `device`, whose alloc and free throw 42 where that is asked for: free when its work is done, so that nothing is lost.
struct Throwing {
  std::atomic<bool> in_alloc{false};
  std::atomic<int> in_free{0};  // in how many frees from now (1: the next); 0: in none
};
PackedAllocator WithExceptions(const PackedAllocator& device, const std::shared_ptr<Throwing>& throwing) {
  return Ok(ApplyLayer(device, [&throwing](AnyRecord inner) -> absl::StatusOr<AnyRecord> {
    AnyRecord outer = inner;
    outer.alloc = [alloc = inner.alloc, throwing](std::size_t nbytes, const BufferSpec& spec) {
      if (throwing->in_alloc) throw 42;
      return alloc(nbytes, spec);
    };
    outer.free = [free = inner.free, throwing](const AnyBuf& buf, std::size_t nbytes, const BufferSpec& spec) {
      const absl::Status freed = free(buf, nbytes, spec);
      if (throwing->in_free > 0 && --throwing->in_free == 0) throw 42;
      return freed;
    };
    return outer;
  }));
}

constexpr int kOrders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};

void CachedMemoryIsReleasedBeforeExhaustion(const DeviceUnderTest& device) {
  device.set_capacity(kMiB);
  const std::size_t live_before = device.live();
  {
    const Cached cached(device);
    cached.Keep({512 * kKiB});
    CHECK(device.live() == live_before + 1);
    std::uint64_t asked = device.allocations();
    const AnyBuf large = Ok(cached.memory.alloc(768 * kKiB));
    CHECK(device.allocations() == asked + 2);  // refused, and after the release not
    CHECK(device.live() == live_before + 1);
    CHECK(cached.stats().flushes == 1);
    const std::string text = TextPattern(768 * kKiB);
    Ok(cached.memory.copyin(large, Bytes(text)));
    asked = device.allocations();
    const absl::Status full = cached.memory.alloc(512 * kKiB).status();
    CHECK_MESSAGE(absl::IsResourceExhausted(full), full.ToString());
    CHECK(full.message().find("524288") != std::string::npos);
    CHECK(device.allocations() <= asked + 2);
    CHECK((Content(cached.memory, large) == text));
    Free(cached.memory, large);
    Free(cached.memory, Ok(cached.memory.alloc(512 * kKiB)));  // nothing of it remains
    // Memory that is zero-filled, and so never comes from the cache, makes room too.
    const BufferSpec zero{.zero = true};
    const AnyBuf zeroed = Ok(cached.memory.alloc(kMiB - 128 * kKiB, zero));
    CHECK((Content(cached.memory, zeroed) == std::string(zeroed.nbytes(), '\0')));
    Ok(cached.memory.free(zeroed, zeroed.nbytes(), zero));
  }
  CHECK(device.live() == live_before);
}

void OtherErrorsReleaseNothing(const DeviceUnderTest& device) {
  const Cached cached(device);
  cached.Keep({512});
  const std::uint64_t asked = device.allocations();
  device.refuse_allocation(1);
  const absl::Status refused = cached.memory.alloc(1024).status();
  device.heal();
  CHECK_FALSE(refused.ok());
  CHECK_FALSE(absl::IsResourceExhausted(refused));
  CHECK(device.allocations() == asked + 1);
  CHECK(cached.stats().flushes == 0);
  CHECK(cached.stats().cached_buffers == 1);
  Free(cached.memory, Ok(cached.memory.alloc(1024)));
}

void EmptyBuffersNeedNoDriver(const DeviceUnderTest& device) {
  const Cached cached(device);
  const PackedAllocator& memory = cached.memory;
  const LruStats before = cached.stats();
  const std::uint64_t calls = device.calls();
  const AnyBuf a = Ok(memory.alloc(0));
  const AnyBuf b = Ok(memory.alloc(0));
  Ok(memory.copyin(a, {}));
  Ok(memory.copyout({}, a));
  Ok(memory.transfer(a, b, 0));
  Ok(memory.offset(a, 0, 0));
  Free(memory, a);
  Free(memory, b);
  CHECK(device.calls() == calls);
  CHECK(cached.stats().cached_buffers == 0);
  CHECK(cached.stats().peak_held_bytes == before.peak_held_bytes);
  const AnyBuf real = Ok(memory.alloc(4096));
  Ok(memory.copyin(real, Bytes(TextPattern(4096))));
  CHECK((Content(memory, real) == TextPattern(4096)));
  Free(memory, real);
}

void SizesThatOverflowReachNoDriver(const DeviceUnderTest& device) {
  for (const double waste : {0.0, 0.125}) {
    const Cached cached(device, {.max_waste = waste});
    const std::uint64_t calls = device.calls();
    for (const PackedAllocator& memory : {device.open(), cached.memory}) {
      const std::uint64_t before = device.calls();
      for (const std::size_t nbytes : {kMost, kMost - 100, kMost - 510, kMost / 2 + 1}) {
        for (const BufferSpec& spec : {BufferSpec{}, BufferSpec{.host = true}, BufferSpec{.zero = true}}) {
          CHECK_FALSE(memory.alloc(nbytes, spec).ok());
        }
      }
      CHECK(device.calls() == before);
      const AnyBuf a = Ok(memory.alloc(512));
      const AnyBuf b = Ok(memory.alloc(512));
      CHECK(Ok(memory.addr(a)) != Ok(memory.addr(b)));
      Free(memory, a);
      Free(memory, b);
    }
    CHECK(device.calls() > calls);
    CHECK(cached.stats().peak_in_use_bytes <= 2048);
  }
}

void ThreadsAndClearsOnASmallDevice(const DeviceUnderTest& device) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 1000;
  device.set_capacity(320 * kKiB);  // less than what one thread wants at times
  const std::size_t live_before = device.live();
  const unsigned seed = std::random_device{}();
  CAPTURE(seed);
  {
    const Cached cached(device);
    const PackedAllocator& memory = cached.memory;
    std::atomic<int> running{kThreads};
    std::atomic<int> failures{0}, foreign{0}, exhausted{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937 random(seed + static_cast<unsigned>(t));
        const std::size_t sizes[] = {512, 4096, 65536};
        std::deque<AnyBuf> mine;
        const auto release = [&] {
          const AnyBuf buf = mine.front();
          mine.pop_front();
          std::vector<std::byte> read(buf.nbytes());
          if (!memory.copyout(absl::MakeSpan(read), buf).ok()) ++failures;
          if (read != std::vector<std::byte>(buf.nbytes(), static_cast<std::byte>(t + 1))) ++foreign;
          if (!memory.free(buf, buf.nbytes()).ok()) ++failures;
        };
        for (int i = 0; i < kRounds; ++i) {
          if (mine.size() == 16 || (!mine.empty() && random() % 3 == 0)) {
            release();
            continue;
          }
          const std::size_t nbytes = sizes[random() % 3];
          const absl::StatusOr<AnyBuf> buf = memory.alloc(nbytes);
          if (!buf.ok()) {
            ++(absl::IsResourceExhausted(buf.status()) ? exhausted : failures);
            continue;
          }
          mine.push_back(*buf);
          if (!memory.copyin(*buf, std::vector<std::byte>(nbytes, static_cast<std::byte>(t + 1))).ok()) ++failures;
        }
        while (!mine.empty()) release();
        --running;
      });
    }
    std::thread clearing([&] {
      while (running > 0) {
        if (!cached.control->Clear().ok()) ++failures;
        std::this_thread::yield();
      }
    });
    do {  // another cache over the same device comes and goes
      const absl::StatusOr<PackedAllocator> second = Lru(device.open());
      const absl::StatusOr<AnyBuf> buf = second.ok() ? second->alloc(512) : second.status();
      if (!buf.ok() && !absl::IsResourceExhausted(buf.status())) ++failures;
      if (buf.ok() && !second->free(*buf, 512).ok()) ++failures;
    } while (running > 0);
    for (std::thread& thread : threads) thread.join();
    clearing.join();
    CHECK(failures == 0);
    CHECK(foreign == 0);
    CHECK(exhausted > 0);
    CHECK(cached.stats().flushes > 0);
    Ok(cached.control->Clear());
    CHECK(cached.stats().cached_bytes == 0);
    CHECK(cached.stats().in_use_bytes == 0);
    CHECK(cached.stats().failed_frees == 0);
  }
  CHECK(device.live() == live_before);
}

void AnyOrderOfDestruction(const DeviceUnderTest& device) {
  const std::size_t live_before = device.live();
  for (const auto& order : kOrders) {
    for (const bool cached : {false, true}) {
      PackedAllocator memory = device.open();
      if (cached) memory = Ok(Lru(memory));
      std::optional<Buffer> buffer(std::in_place, memory, 4096);
      std::optional<Buffer> view = Ok(buffer->View(64, 100));
      Ok(view->CopyIn(Bytes(TextPattern(64))));
      std::optional<Tensor> tensor = Ok(Tensor::Over(*view, {64}, kUInt8));
      DlpackVersionedPtr exported = Ok(ToDlpackVersioned(*tensor));
      tensor.reset();
      if (cached) {
        for (const std::size_t nbytes : {8192, 16384}) Free(memory, Ok(memory.alloc(nbytes)));
        CHECK(device.live() == live_before + 3);
      }
      memory = PackedAllocator();
      for (const int what : order) {
        CHECK(device.live() > live_before);
        if (what == 0) buffer.reset();
        if (what == 1) view.reset();
        if (what == 2) exported.reset();
      }
      CHECK(device.live() == live_before);
    }
    PackedAllocator memory = device.open();
    std::optional<TensorPool> pool = Ok(TensorPool::Make(memory));
    Tensor live = Ok(pool->Empty({100}, kFloat32));
    Tensor view = Ok(pool->CreateView(live, {10}, kFloat32, 40));
    Ok(pool->Empty({8000}, kUInt8));  // lies in the cache
    memory = PackedAllocator();
    for (const int what : order) {
      CHECK(device.live() == live_before + 2);
      if (what == 0) pool.reset();
      if (what == 1) live = Tensor();
      if (what == 2) view = Tensor();
    }
    CHECK(device.live() == live_before);
  }
}

void FunctionsThatThrow(const DeviceUnderTest& device) {
  const std::size_t live_before = device.live();
  const auto throwing = std::make_shared<Throwing>();
  const auto all_is_well = [&](const PackedAllocator& memory) {
    CHECK(ServesAnotherThread(memory));
    CHECK(throwing->in_free == 0);
  };
  {
    const PackedAllocator memory = WithExceptions(device.open(), throwing);
    {
      const Buffer buffer(memory, 4096);
      Ok(buffer.CopyIn(Bytes(TextPattern(4096))));
      throwing->in_free = 1;
    }
    all_is_well(memory);
    CHECK(device.live() == live_before);

    const PackedAllocator kept = Ok(Lru(memory));
    const auto control = Find<LruControl>(kept);
    std::vector<AnyBuf> bufs;
    for (const std::size_t nbytes : {512, 1024, 2048}) bufs.push_back(Ok(kept.alloc(nbytes)));
    for (const AnyBuf& buf : bufs) Free(kept, buf);
    throwing->in_free = 2;
    const absl::Status cleared = control->Clear();
    CHECK(absl::IsInternal(cleared));
    CHECK(control->stats().cached_buffers == 0);
    CHECK(control->stats().failed_frees == 1);
    CHECK(device.live() == live_before);
    all_is_well(kept);

    device.set_capacity(kMiB);
    Free(kept, Ok(kept.alloc(512 * kKiB)));
    throwing->in_free = 1;
    Free(kept, Ok(kept.alloc(768 * kKiB)));  // releases the other, which throws
    CHECK(control->stats().failed_frees == 2);
    all_is_well(kept);

    throwing->in_alloc = true;
    const LruStats before = control->stats();
    CHECK_THROWS_AS(kept.alloc(300).IgnoreError(), int);
    CHECK_THROWS_AS(Buffer(kept, 300).Allocate().IgnoreError(), int);
    throwing->in_alloc = false;
    CHECK(control->stats().in_use_bytes == before.in_use_bytes);
    CHECK(control->stats().cached_bytes == before.cached_bytes);
    all_is_well(kept);

    // While a device is being filled from a file.
    const TempDir dir;
    const std::string text = TextPattern(3 * kMiB / 4);
    const PackedAllocator disk = Ok(Pack(Ok(DiskAllocator(dir.Write("f", text)))));
    const Buffer dest(kept, text.size());
    const std::vector<CopyPair> pairs = {{Ok(dest.ref()), {disk, Ok(disk.alloc(text.size()))}}};
    CopyAllOptions options;
    options.progress = [](std::uint64_t, std::uint64_t) -> bool { throw 42; };
    CHECK_THROWS_AS(CopyAll(pairs, options).IgnoreError(), int);
    all_is_well(memory);
    Ok(CopyAll(pairs));
    CHECK((Content(kept, Ok(dest.handle())) == text));
  }
  CHECK(device.live() == live_before);
}

void FailuresHalfWay(const DeviceUnderTest& device) {
  const std::size_t live_before = device.live();
  const Cached cached(device, {.max_bytes = 0});
  const auto nothing_happened = [&] {
    device.heal();
    CHECK(device.live() == live_before);
    CHECK(cached.stats().in_use_bytes == 0);
    CHECK(cached.stats().in_use_buffers == 0);
    CHECK(ServesAnotherThread(cached.memory));
  };
  {
    const Buffer filled(cached.memory, 4096);
    Ok(filled.Allocate());
    device.fail_write(1);
    CHECK_FALSE(filled.CopyIn(Bytes(TextPattern(4096))).ok());
  }
  nothing_happened();
  {
    const TempDir dir;
    auto system = std::make_shared<FaultyDisk>();
    system->fails_at = 3 * kMiB;
    const PackedAllocator disk = Ok(Pack(Ok(DiskAllocator(dir.Write("f", TextPattern(4 * kMiB)), {.system = system}))));
    const Buffer loaded(cached.memory, 4 * kMiB);
    Ok(loaded.Allocate());
    const absl::Status status = Copy(Ok(loaded.ref()), {disk, Ok(disk.alloc(4 * kMiB))}).status();
    CHECK_MESSAGE(absl::IsDataLoss(status), status.ToString());
  }
  nothing_happened();
  for (const bool full : {true, false}) {
    constexpr std::size_t kChunk = 3 * kMiB / 4;
    if (full) {
      device.set_capacity(2 * kMiB);
    } else {
      device.set_capacity(std::size_t{1} << 30);
      device.refuse_allocation(3);
    }
    {
      std::vector<Buffer> chunks;
      for (int i = 0; i < 3; ++i) chunks.emplace_back(cached.memory, kChunk);
      Ok(chunks[0].Allocate());
      Ok(chunks[1].Allocate());
      const absl::Status third = chunks[2].Allocate();
      CHECK_FALSE(third.ok());
      CHECK(absl::IsResourceExhausted(third) == full);
      CHECK_FALSE(chunks[2].is_allocated());
    }
    nothing_happened();
  }
}

void CopiesBetweenUnlikeDevices(const DeviceUnderTest& device) {
  const PackedAllocator memory = device.open();
  const PackedAllocator cpu = Ok(Pack(CpuAllocator()));
  const std::string text = TextPattern(1000);
  const auto filled = [](const PackedAllocator& allocator, const std::string& with) {
    const BufferRef ref{allocator, Ok(allocator.alloc(with.size()))};
    Ok(allocator.copyin(ref.buffer, Bytes(with)));
    return ref;
  };
  const BufferRef from = filled(cpu, text);
  const BufferRef there = filled(memory, std::string(1000, 'x'));
  const BufferRef back = filled(cpu, std::string(1000, 'y'));
  CHECK(Ok(Copy(there, from)).path == CopyPath::kCopyIn);
  CHECK(Ok(Copy(back, there)).path == CopyPath::kCopyOut);
  CHECK((Content(cpu, back.buffer) == text));

  const BufferRef shorter = filled(memory, std::string(999, 'z'));
  const std::uint64_t calls = device.calls();
  CHECK(absl::IsInvalidArgument(Copy(shorter, from).status()));
  CHECK(absl::IsInvalidArgument(Copy(back, shorter).status()));
  CHECK(device.calls() == calls);
  CHECK((Content(memory, shorter.buffer) == std::string(999, 'z')));
  CHECK((Content(cpu, back.buffer) == text));

  // Staged, to and from a device whose memory the CPU cannot reach; and the second half fails.
  Allocator<MockBuf> mock = MockAllocator();
  mock.host_ptr = nullptr;
  const PackedAllocator other = Ok(Pack(mock));
  const std::string large = TextPattern(kMiB + 7);
  const CopyOptions options{.staging_bytes = kMiB / 4};
  const BufferRef source = filled(other, large);
  const BufferRef middle = filled(memory, std::string(large.size(), 'x'));
  const BufferRef end = filled(other, std::string(large.size(), 'y'));
  for (const bool failing : {true, false}) {
    if (failing) device.fail_write(4);
    const absl::StatusOr<CopyReport> copied = Copy(middle, source, options);
    device.heal();
    CHECK(copied.ok() != failing);
    if (copied.ok()) CHECK(copied->path == CopyPath::kStaged);
  }
  CHECK((Content(memory, middle.buffer) == large));
  Find<MockControl>(mock)->FailNth(Member::kCopyin, 4, absl::DataLossError("link down"));
  CHECK(absl::IsDataLoss(Copy(end, middle, options).status()));
  CHECK(Ok(Copy(end, middle, options)).path == CopyPath::kStaged);
  CHECK((Content(other, end.buffer) == large));
  for (const BufferRef& ref : {from, there, back, shorter, source, middle, end}) Free(ref.allocator, ref.buffer);
}

}  // namespace

void RunDeviceCases(const DeviceUnderTest& device) {
  const auto run = [&device](const char* name, void (*run_case)(const DeviceUnderTest&)) {
    INFO("case: ", std::string(name));
    device.set_capacity(std::size_t{1} << 30);
    run_case(device);
    device.heal();
  };
  run("cached memory is released before exhaustion", CachedMemoryIsReleasedBeforeExhaustion);
  run("other errors release nothing", OtherErrorsReleaseNothing);
  run("empty buffers need no driver", EmptyBuffersNeedNoDriver);
  run("sizes that overflow reach no driver", SizesThatOverflowReachNoDriver);
  run("threads and clears on a small device", ThreadsAndClearsOnASmallDevice);
  run("any order of destruction", AnyOrderOfDestruction);
  run("functions that throw", FunctionsThatThrow);
  run("failures half-way", FailuresHalfWay);
  run("copies between unlike devices", CopiesBetweenUnlikeDevices);
}

}  // namespace packalloc::testing
