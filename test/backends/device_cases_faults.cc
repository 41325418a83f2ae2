// What fails or throws half-way, and what is refused before the driver hears of it.
#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <future>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "packalloc/backends/disk.h"
#include "packalloc/buffer.h"
#include "packalloc/c/packalloc.h"
#include "packalloc/registry.h"
#include "test/backends/device_case.h"
#include "test/disk/faulty_disk.h"
#include "test/temp_dir.h"

namespace packalloc::testing {
namespace {

constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max();

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
  CHECK(Holds(device, memory, real, TextPattern(4096)));
  Free(memory, real);
}

void SizesAndAlignmentsThatCannotBeReachNoDriver(const DeviceUnderTest& device) {
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
      for (const std::size_t alignment : {std::size_t{3}, std::size_t{48}, std::size_t{1} << 63}) {
        CHECK(absl::IsInvalidArgument(memory.alloc(64, {.alignment = alignment}).status()));
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

void RangesOutsideABufferReachNoDriver(const DeviceUnderTest& device) {
  const PackedAllocator memory = device.open();
  const BufferRef small = Filled(memory, TextPattern(64));
  const BufferRef large = Filled(memory, TextPattern(4096));
  const AnyBuf view = Ok(memory.offset(large.buffer, 1024, 256));
  const std::uint64_t calls = device.calls();
  const auto refused = [](const absl::Status& status) { CHECK_MESSAGE(absl::IsOutOfRange(status), status.ToString()); };
  refused(memory.offset(small.buffer, 8, 64).status());
  refused(memory.offset(small.buffer, kMost - 4, 8).status());
  refused(memory.offset(small.buffer, 2, kMost).status());
  refused(memory.offset(view, 64, 1016).status());  // inside the buffer, not inside the view
  refused(memory.copyin(small.buffer, Bytes(std::string(65, 'x'))));
  std::string read(1025, 'x');
  refused(memory.copyout({reinterpret_cast<std::byte*>(read.data()), read.size()}, view));
  refused(memory.transfer(small.buffer, view, 65));
  refused(memory.transfer(large.buffer, view, 1025));
  CHECK(Ok(memory.offset(small.buffer, 0, 64)).nbytes() == 0);
  CHECK(device.calls() == calls);
  CHECK(read == std::string(1025, 'x'));
  CHECK(Holds(device, memory, Ok(memory.offset(view, 64, 128)), TextPattern(4096).substr(384, 64)));
  CHECK(Holds(device, memory, small.buffer, TextPattern(64)));
  for (const BufferRef& ref : {small, large}) Free(memory, ref.buffer);
}

// A buffer that 32 bits cannot measure, used behind their end.
void SizesBeyond32BitsArriveWhole(const DeviceUnderTest& device) {
  constexpr std::size_t kLarge = (std::size_t{1} << 32) + 1;
  const PackedAllocator memory = device.open();
  device.set_capacity(2 * kLarge);
  if (memory.traits().max_alloc_bytes < kLarge) {
    CHECK(absl::IsResourceExhausted(memory.alloc(kLarge).status()));
    return;
  }
  const AnyBuf buf = Ok(memory.alloc(kLarge));
  CHECK(buf.nbytes() == 4294967297);
  const AnyBuf last = Ok(memory.offset(buf, 1, kLarge - 1));
  Ok(memory.copyin(last, Bytes("x")));
  CHECK(Holds(device, memory, last, "x"));
  CHECK(absl::IsOutOfRange(memory.offset(buf, 1, kLarge).status()));
  Free(memory, buf);
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

    // While a buffer is being filled, by the host and from a file.
    {
      const Buffer filled(kept, 300);
      throwing->in_copyin = true;
      CHECK_THROWS_AS(filled.CopyIn(Bytes(TextPattern(300))).IgnoreError(), int);
      throwing->in_copyin = false;
      CHECK(control->stats().in_use_bytes == before.in_use_bytes + 300);
      all_is_well(kept);
      Ok(filled.CopyIn(Bytes(TextPattern(300))));
    }
    CHECK(control->stats().in_use_bytes == before.in_use_bytes);
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
    CHECK(Holds(device, kept, Ok(dest.handle()), text));
  }
  CHECK(device.live() == live_before);
}

// The device, with those exceptions, as C sees it, under `layers`. Closed at the end.
class InC {
 public:
  InC(const DeviceUnderTest& device, const std::shared_ptr<Throwing>& throwing, const std::string& layers) {
    static int last = 0;
    Backend backend;
    backend.name = "THROWS" + std::to_string(++last);
    backend.open = [open = device.open, throwing](const OpenRequest&) { return WithExceptions(open(), throwing); };
    backend.shared = false;
    Ok(Register(backend));
    REQUIRE_MESSAGE(packalloc_open((backend.name + layers).c_str(), &handle_) == PACKALLOC_OK, packalloc_last_error());
  }
  InC(const InC&) = delete;
  InC& operator=(const InC&) = delete;
  ~InC() { CHECK(packalloc_close(handle_) == PACKALLOC_OK); }

  packalloc_allocator* handle() const { return handle_; }
  packalloc_buffer* Alloc(std::size_t nbytes) const {
    packalloc_buffer* buffer = nullptr;
    REQUIRE_MESSAGE(packalloc_alloc(handle_, nbytes, nullptr, &buffer) == PACKALLOC_OK, packalloc_last_error());
    return buffer;
  }
  packalloc_cache_stats stats() const {
    packalloc_cache_stats stats = PACKALLOC_CACHE_STATS_INIT;
    REQUIRE(packalloc_get_cache_stats(handle_, &stats) == PACKALLOC_OK);
    return stats;
  }
  bool ServesAnotherThread() const {
    auto served = std::async(std::launch::async, [this] {
      packalloc_buffer* buffer = nullptr;
      return packalloc_alloc(handle_, 64, nullptr, &buffer) == PACKALLOC_OK && packalloc_free(buffer) == PACKALLOC_OK;
    });
    return served.wait_for(std::chrono::seconds(30)) == std::future_status::ready && served.get();
  }

 private:
  packalloc_allocator* handle_ = nullptr;
};

void FunctionsThatThrowAreStatusesInC(const DeviceUnderTest& device) {
  const std::size_t live_before = device.live();
  const auto throwing = std::make_shared<Throwing>();
  const auto told = [](packalloc_status status) {
    CHECK(status == PACKALLOC_INTERNAL);
    CHECK(std::string(packalloc_last_error()).find("no std::exception") != std::string::npos);
  };
  for (const char* layers : {"", "+lru"}) {
    const InC memory(device, throwing, layers);
    packalloc_buffer* none = nullptr;
    throwing->in_alloc = true;
    told(packalloc_alloc(memory.handle(), 300, nullptr, &none));
    CHECK(none == nullptr);
    throwing->in_alloc = false;
    packalloc_buffer* buffer = memory.Alloc(300);
    const std::string text = TextPattern(300);
    throwing->in_copyin = true;
    told(packalloc_copyin(buffer, text.data(), text.size()));
    throwing->in_copyin = false;
    CHECK(packalloc_copyin(buffer, text.data(), text.size()) == PACKALLOC_OK);
    CHECK(memory.ServesAnotherThread());
    CHECK(packalloc_free(buffer) == PACKALLOC_OK);
  }
  CHECK(device.live() == live_before);
  {
    // A free that throws before it has done anything leaves the buffer to be freed again.
    const InC memory(device, throwing, "");
    packalloc_buffer* buffer = memory.Alloc(300);
    throwing->frees_all_the_same = false;
    throwing->in_free = 1;
    told(packalloc_free(buffer));
    throwing->frees_all_the_same = true;
    CHECK(packalloc_copyin(buffer, "x", 1) == PACKALLOC_OK);
    CHECK(packalloc_free(buffer) == PACKALLOC_OK);
    CHECK(packalloc_free(buffer) == PACKALLOC_INVALID_ARGUMENT);
    CHECK(memory.ServesAnotherThread());
  }
  CHECK(device.live() == live_before);
  {
    const InC memory(device, throwing, "+lru");
    std::vector<packalloc_buffer*> buffers;
    for (const std::size_t nbytes : {512, 1024, 2048}) buffers.push_back(memory.Alloc(nbytes));
    for (packalloc_buffer* buffer : buffers) CHECK(packalloc_free(buffer) == PACKALLOC_OK);
    CHECK(packalloc_free(buffers[0]) == PACKALLOC_INVALID_ARGUMENT);
    throwing->in_free = 2;
    CHECK(packalloc_trim(memory.handle(), 0) == PACKALLOC_INTERNAL);
    CHECK(std::string(packalloc_last_error()).find("1 of 3") != std::string::npos);
    CHECK(packalloc_free(buffers[0]) == PACKALLOC_INVALID_ARGUMENT);  // nor is it one after the release
    CHECK(memory.stats().cached_buffers == 0);
    CHECK(memory.stats().failed_frees == 1);
    CHECK(device.live() == live_before);

    device.set_capacity(kMiB);
    CHECK(packalloc_free(memory.Alloc(512 * kKiB)) == PACKALLOC_OK);
    throwing->in_free = 1;
    CHECK(packalloc_free(memory.Alloc(768 * kKiB)) == PACKALLOC_OK);  // releases the other, which throws
    CHECK(throwing->in_free == 0);
    CHECK(memory.stats().failed_frees == 2);
    CHECK(memory.ServesAnotherThread());
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
      chunks.reserve(3);
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

}  // namespace

DeviceCaseList FaultCases() {
  return {
      {"empty buffers need no driver", EmptyBuffersNeedNoDriver},
      {"sizes and alignments that cannot be reach no driver", SizesAndAlignmentsThatCannotBeReachNoDriver},
      {"ranges outside a buffer reach no driver", RangesOutsideABufferReachNoDriver},
      {"sizes beyond 32 bits arrive whole", SizesBeyond32BitsArriveWhole},
      {"functions that throw", FunctionsThatThrow},
      {"functions that throw are statuses in C", FunctionsThatThrowAreStatusesInC},
      {"failures half-way", FailuresHalfWay},
  };
}

}  // namespace packalloc::testing
