// Under a cache: whom its memory serves, how much of it there is, and when it goes back.
#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "packalloc/buffer.h"
#include "packalloc/layers/checked.h"
#include "test/backends/device_case.h"
#include "test/temp_dir.h"

namespace packalloc::testing {
namespace {

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
    CHECK(Holds(device, cached.memory, large, text));
    Free(cached.memory, large);
    Free(cached.memory, Ok(cached.memory.alloc(512 * kKiB)));  // nothing of it remains
    // Memory that is zero-filled, and so never comes from the cache, makes room too.
    const BufferSpec zero{.zero = true};
    const AnyBuf zeroed = Ok(cached.memory.alloc(kMiB - 128 * kKiB, zero));
    CHECK(Holds(device, cached.memory, zeroed, std::string(zeroed.nbytes(), '\0')));
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

void CachedMemoryServesItsOwnDeviceSizeAndSpec(const DeviceUnderTest& device) {
  const std::size_t live_before = device.live();
  const Cached one(device);
  const Cached other(device);
  const BufferSpec host{.host = true};
  one.Keep({4096});
  CHECK(device.live() == live_before + 1);
  const AnyBuf elsewhere = Ok(other.memory.alloc(4096));
  CHECK(device.live() == live_before + 2);
  const AnyBuf pinned = Ok(one.memory.alloc(4096, host));
  CHECK(device.live() == live_before + 3);
  Ok(one.memory.free(pinned, 4096, host));
  const AnyBuf plain = Ok(one.memory.alloc(4096));
  CHECK(device.live() == live_before + 3);
  CHECK(one.stats().hits == 1);
  Free(one.memory, plain);
  Free(other.memory, elsewhere);
  Ok(one.control->Clear());
  CHECK(device.live() == live_before + 1);
  Ok(other.control->Clear());
  CHECK(device.live() == live_before);

  // Sizes that a cache may take for one: what is handed out holds all that was asked for.
  for (const double waste : {0.0, 0.125}) {
    const Cached classes(device, {.max_waste = waste});
    classes.Keep({150});
    const AnyBuf larger = Ok(classes.memory.alloc(200));
    if (waste == 0) CHECK(classes.stats().hits == 0);
    const std::string text = TextPattern(200);
    Ok(classes.memory.copyin(larger, Bytes(text)));
    CHECK(Holds(device, classes.memory, larger, text));
    Free(classes.memory, larger);
  }
  CHECK(device.live() == live_before);
}

void SizesThatKeepChangingStayWithinTheLimit(const DeviceUnderTest& device) {
  const std::size_t live_before = device.live();
  const Cached cached(device, {.max_bytes = kMiB});
  for (std::size_t i = 1; i <= 200; ++i) {
    Free(cached.memory, Ok(cached.memory.alloc(4096 + 512 * i)));
    const LruStats now = cached.stats();
    REQUIRE(now.cached_bytes <= kMiB);
    REQUIRE(device.live() == live_before + now.cached_buffers);
  }
  CHECK(cached.stats().cached_bytes > kMiB - 128 * kKiB);
  const std::uint64_t asked = device.allocations();
  Free(cached.memory, Ok(cached.memory.alloc(4096 + 512 * 200)));  // the last one is still there
  CHECK(device.allocations() == asked);
  Free(cached.memory, Ok(cached.memory.alloc(4096 + 512)));  // the first one is not
  CHECK(device.allocations() == asked + 1);
  const std::size_t kept = cached.stats().cached_buffers;
  Free(cached.memory, Ok(cached.memory.alloc(kMiB + 1)));  // larger than the limit: nothing goes for it
  CHECK(cached.stats().cached_buffers == kept);
  CHECK(device.live() == live_before + kept);
  Ok(cached.control->Clear());
  CHECK(cached.stats().cached_bytes == 0);
  CHECK(device.live() == live_before);
}

void ASecondFreeIsAnErrorAndChangesNothing(const DeviceUnderTest& device) {
  const std::size_t live_before = device.live();
  for (const bool checked : {true, false}) {
    PackedAllocator memory = Ok(Lru(device.open(), {.check_frees = !checked}));
    if (checked) memory = Ok(Checked(memory, {.stack_depth = 0}));
    const auto control = Find<LruControl>(memory);
    const AnyBuf buf = Ok(memory.alloc(512));
    const AnyBuf copy = buf;  // NOLINT(performance-unnecessary-copy-initialization): what is tested
    Free(memory, buf);
    CHECK(absl::IsFailedPrecondition(memory.free(copy, 512)));
    CHECK(control->stats().cached_buffers == 1);
    const AnyBuf x = Ok(memory.alloc(512));
    const AnyBuf y = Ok(memory.alloc(512));
    CHECK(Ok(memory.addr(x)) != Ok(memory.addr(y)));
    Free(memory, x);
    Free(memory, y);
    Ok(control->Clear());
    CHECK(device.live() == live_before);
    const std::uint64_t calls = device.calls();
    CHECK(absl::IsFailedPrecondition(memory.free(y, 512)));
    CHECK(device.calls() == calls);
    CHECK(control->stats().cached_bytes == 0);
  }
  const Buffer buffer(device.open(), 512);
  Ok(buffer.Allocate());
  Ok(buffer.Deallocate());
  CHECK(absl::IsFailedPrecondition(buffer.Deallocate()));
  CHECK(device.live() == live_before);
}

void AFreeWithAnotherSizeIsAnErrorAndChangesNothing(const DeviceUnderTest& device) {
  const std::size_t live_before = device.live();
  const Cached cached(device);
  const AnyBuf buf = Ok(cached.memory.alloc(4096));
  const std::uint64_t calls = device.calls();
  for (const std::size_t wrong : {0, 4095, 8192}) CHECK(absl::IsInvalidArgument(cached.memory.free(buf, wrong)));
  CHECK(device.calls() == calls);
  CHECK(cached.stats().in_use_bytes == 4096);
  const AnyBuf larger = Ok(cached.memory.alloc(8192));
  CHECK(device.live() == live_before + 2);
  CHECK(Ok(cached.memory.addr(larger)) != Ok(cached.memory.addr(buf)));
  Free(cached.memory, buf);
  const AnyBuf again = Ok(cached.memory.alloc(8192));
  CHECK(device.live() == live_before + 3);  // the smaller one lies in the cache
  for (const AnyBuf& one : {larger, again}) Free(cached.memory, one);
  Ok(cached.control->Clear());
  CHECK(device.live() == live_before);
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
    threads.reserve(kThreads);
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
          if (device.moves_bytes && read != std::vector<std::byte>(buf.nbytes(), static_cast<std::byte>(t + 1)))
            ++foreign;
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

}  // namespace

DeviceCaseList CacheCases() {
  return {
      {"cached memory is released before exhaustion", CachedMemoryIsReleasedBeforeExhaustion},
      {"other errors release nothing", OtherErrorsReleaseNothing},
      {"cached memory serves its own device, size and spec", CachedMemoryServesItsOwnDeviceSizeAndSpec},
      {"sizes that keep changing stay within the limit", SizesThatKeepChangingStayWithinTheLimit},
      {"a second free is an error and changes nothing", ASecondFreeIsAnErrorAndChangesNothing},
      {"a free with another size is an error and changes nothing", AFreeWithAnotherSizeIsAnErrorAndChangesNothing},
      {"threads and clears on a small device", ThreadsAndClearsOnASmallDevice},
  };
}

}  // namespace packalloc::testing
