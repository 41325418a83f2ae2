#include "packalloc/layers/lru.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/layers/stack_rules.h"
#include "test/layers/fake_record.h"

namespace packalloc {
namespace {

using Log = std::vector<std::string>;
constexpr std::size_t kMiB = std::size_t{1} << 20;

// A cache over a fake, packed.
struct Stack {
  explicit Stack(const LruOptions& options = {}, std::size_t capacity = SIZE_MAX) {
    fake->capacity = capacity;
    absl::StatusOr<PackedAllocator> made = Lru(*Pack(FakeRecord(fake)), options);
    REQUIRE(made.ok());
    device = *made;
    cache = Find<LruControl>(device);
    REQUIRE(cache);
  }
  ~Stack() {
    cache = nullptr;
    device = PackedAllocator();
    CHECK(fake->live.empty());
    CHECK(fake->foreign_frees == 0);
  }
  AnyBuf Alloc(std::size_t nbytes, const BufferSpec& spec = {}) const {
    absl::StatusOr<AnyBuf> buf = device.alloc(nbytes, spec);
    REQUIRE_MESSAGE(buf.ok(), buf.status().ToString());
    return *buf;
  }
  void Free(const AnyBuf& buf, const BufferSpec& spec = {}) const {
    REQUIRE(device.free(buf, buf.nbytes(), spec).ok());
  }
  std::uintptr_t At(const AnyBuf& buf) const { return device.addr(buf)->value; }
  LruStats stats() const { return cache->stats(); }

  std::shared_ptr<Fake> fake = std::make_shared<Fake>();
  PackedAllocator device;
  std::shared_ptr<LruControl> cache;
};

TEST_CASE("a freed buffer serves the next request of its size, the newest first") {
  const Stack s;
  const AnyBuf a = s.Alloc(4096);
  const AnyBuf b = s.Alloc(4096);
  const std::uintptr_t at_a = s.At(a), at_b = s.At(b);
  s.Free(a);
  s.Free(b);
  const AnyBuf c = s.Alloc(4096);
  const AnyBuf d = s.Alloc(4096);
  CHECK(s.At(c) == at_b);
  CHECK(s.At(d) == at_a);
  CHECK(c.nbytes() == 4096);
  CHECK(s.fake->log == Log{"alloc 4096", "alloc 4096"});
  s.Free(c);
  s.Free(d);
  const LruStats stats = s.stats();
  CHECK(stats.hits == 2);
  CHECK(stats.misses == 2);
  CHECK(stats.cached_bytes == 8192);
  CHECK(stats.cached_buffers == 2);
  CHECK(stats.in_use_bytes == 0);
  CHECK(stats.in_use_buffers == 0);
  CHECK(stats.peak_in_use_bytes == 8192);
  CHECK(stats.peak_held_bytes == 8192);
}

TEST_CASE("a buffer serves only requests of its own device, size and spec") {
  const Stack s, other;
  s.Free(s.Alloc(4096));
  other.Free(other.Alloc(4096));
  CHECK(other.stats().misses == 1);
  const std::vector<BufferSpec> specs = {{.host = true},    {.cpu_access = true}, {.uncached = true},
                                         {.alignment = 64}, {.alignment = 4096},  {.host = true, .alignment = 64}};
  for (const BufferSpec& spec : specs) s.Free(s.Alloc(4096, spec), spec);
  CHECK(s.stats().hits == 0);
  CHECK(s.stats().misses == 1 + specs.size());
  for (const BufferSpec& spec : specs) s.Free(s.Alloc(4096, spec), spec);
  CHECK(s.stats().hits == specs.size());

  const AnyBuf small = s.Alloc(150);
  s.Free(small);
  const AnyBuf large = s.Alloc(200);
  CHECK(s.fake->log.back() == "alloc 200");
  s.Free(large);
}

TEST_CASE("alignment is part of the key and reaches the inner record") {
  const Stack s;
  std::vector<AnyBuf> bufs;
  for (int i = 0; i < 16; ++i) bufs.push_back(s.Alloc(2048, {.alignment = 64}));
  for (const AnyBuf& buf : bufs) s.Free(buf, {.alignment = 64});
  const AnyBuf page = s.Alloc(2048, {.alignment = 4096});
  CHECK(s.At(page) % 4096 == 0);
  s.Free(page, {.alignment = 4096});
  CHECK(s.stats().hits == 0);
  const std::size_t calls = s.fake->log.size();
  for (std::size_t alignment : {std::size_t{3}, std::size_t{48}, std::size_t{1} << 63}) {
    CHECK(s.device.alloc(64, {.alignment = alignment}).status().code() == absl::StatusCode::kInvalidArgument);
    CHECK(s.device.unpack<void*>()->alloc(64, {.alignment = alignment}).status().code() ==
          absl::StatusCode::kInvalidArgument);
  }
  CHECK(s.fake->log.size() == calls);
}

TEST_CASE("sizes that keep changing stay within the limit, and nothing grows") {
  const Stack s({.max_bytes = 64 * kMiB});
  for (std::size_t i = 1; i <= 2000; ++i) {
    s.Free(s.Alloc(65536 + 512 * i));
    REQUIRE(s.stats().cached_bytes <= 64 * kMiB);
  }
  CHECK(s.stats().cached_bytes > 60 * kMiB);
  CHECK(s.stats().evictions == 2000 - s.stats().cached_buffers);
  CHECK(s.fake->log.back() != "alloc 65536");

  s.Free(s.Alloc(64 * kMiB + 1));  // larger than the limit: not kept, and pushes nothing out
  CHECK(s.fake->log.back() == absl::StrCat("free ", 64 * kMiB + 1));
  CHECK(s.stats().cached_bytes > 60 * kMiB);
  CHECK(s.cache->Clear().ok());
  CHECK(s.stats().cached_bytes == 0);
  CHECK(s.stats().cached_buffers == 0);
  CHECK(s.fake->live.empty());
}

TEST_CASE("the least recently used goes first, across sizes and specs") {
  const Stack s({.max_bytes = 1000});
  const BufferSpec host{.host = true};
  const AnyBuf a = s.Alloc(301), b = s.Alloc(302, host), c = s.Alloc(303), d = s.Alloc(304);
  s.Free(c);
  s.Free(a);
  s.Free(b, host);
  s.fake->log.clear();
  s.Free(d);
  CHECK(s.fake->log == Log{"free 303"});
  s.Free(s.Alloc(301));  // a was used again, b is the oldest now
  s.Free(s.Alloc(305));
  CHECK(s.fake->log == Log{"free 303", "alloc 305", "free 302"});
  CHECK(s.stats().evictions == 2);
  CHECK(s.stats().flushes == 0);
}

TEST_CASE("no limit of zero bytes: nothing is kept") {
  const Stack s({.max_bytes = 0});
  s.Free(s.Alloc(64));
  CHECK(s.stats().evictions == 1);
  CHECK(s.fake->log == Log{"alloc 64", "free 64"});
}

TEST_CASE("cached buffers are released before memory counts as exhausted") {
  const Stack s({}, 1024 * kMiB);
  s.Free(s.Alloc(512 * kMiB));
  const AnyBuf c = s.Alloc(768 * kMiB);
  CHECK(s.fake->log == Log{absl::StrCat("alloc ", 512 * kMiB), absl::StrCat("alloc ", 768 * kMiB, " failed"),
                           "synchronize", absl::StrCat("free ", 512 * kMiB), absl::StrCat("alloc ", 768 * kMiB)});
  CHECK(s.stats().flushes == 1);
  CHECK(s.stats().evictions == 0);

  s.fake->log.clear();
  const absl::Status full = s.device.alloc(512 * kMiB).status();
  CHECK(full.code() == absl::StatusCode::kResourceExhausted);
  CHECK(full.message().find(absl::StrCat(512 * kMiB)) != std::string::npos);
  CHECK(full.message().find(absl::StrCat(768 * kMiB, " bytes in use and 0 cached")) != std::string::npos);
  CHECK(s.fake->log == Log{absl::StrCat("alloc ", 512 * kMiB, " failed")});
  CHECK(s.stats().in_use_bytes == 768 * kMiB);
  CHECK(s.stats().misses == 2);

  s.Free(c);
  s.fake->log.clear();
  for (absl::StatusCode code : {absl::StatusCode::kInternal, absl::StatusCode::kUnavailable}) {
    s.fake->on_alloc = [code] { return absl::Status(code, "invalid device"); };
    const absl::Status lost = s.device.alloc(64).status();
    CHECK(lost == absl::Status(code, "invalid device"));
  }
  s.fake->on_alloc = nullptr;
  CHECK(s.fake->log.empty());
  CHECK(s.stats().cached_bytes == 768 * kMiB);
}

TEST_CASE("only as much as is needed is released, the oldest first, doubling") {
  const Stack s({}, 100);
  std::vector<AnyBuf> bufs;
  for (std::size_t i = 0; i < 10; ++i) bufs.push_back(s.Alloc(10));
  for (const AnyBuf& buf : bufs) s.Free(buf);
  s.fake->log.clear();
  const AnyBuf a = s.Alloc(11);
  CHECK(s.stats().cached_bytes == 80);
  s.Free(a);
  // An inner record whose memory is in pieces: exhausted until 70 of 80 + 11 bytes are free.
  std::size_t calls = 0;
  s.fake->on_alloc = [&]() -> absl::Status {
    ++calls;
    return s.fake->live_bytes <= 21 ? absl::OkStatus() : absl::ResourceExhaustedError("in pieces");
  };
  const AnyBuf b = s.Alloc(12);
  CHECK(calls == 4);  // at once, after 12 bytes or more, 24 or more, 48 or more
  CHECK(s.stats().flushes == 4);
  s.fake->on_alloc = nullptr;
  s.Free(b);
}

TEST_CASE("requests that are never cached make room too") {
  const Stack s({}, 100);
  s.Free(s.Alloc(80));
  const AnyBuf a = s.Alloc(90, {.zero = true});
  CHECK(s.stats().in_use_bytes == 90);
  CHECK(s.stats().cached_bytes == 0);
  s.Free(a, {.zero = true});
}

TEST_CASE("caches over the same memory give back for each other, others do not") {
  auto fake = std::make_shared<Fake>();
  fake->capacity = 100;
  auto record = FakeRecord(fake);
  record.traits.memory_domain = NewDomain();
  auto other_record = record;
  PackedAllocator a = *Lru(*Pack(record)), b = *Lru(*Pack(other_record));
  REQUIRE(b.free(*b.alloc(80), 80).ok());
  absl::StatusOr<AnyBuf> buf = a.alloc(60);
  REQUIRE(buf.ok());
  CHECK(Find<LruControl>(b)->stats().cached_bytes == 0);
  CHECK(Find<LruControl>(b)->stats().flushes == 1);
  REQUIRE(a.free(*buf, 60).ok());

  record.traits.memory_domain = 0;
  PackedAllocator stranger = *Lru(*Pack(record));
  CHECK(stranger.alloc(60).status().code() == absl::StatusCode::kResourceExhausted);
  CHECK(Find<LruControl>(a)->stats().cached_bytes == 60);
}

TEST_CASE("nolru, zero, external and empty buffers pass through") {
  const Stack s;
  for (const BufferSpec& spec : {BufferSpec{.nolru = true}, BufferSpec{.zero = true}}) {
    s.fake->log.clear();
    const AnyBuf a = s.Alloc(4096, spec);
    CHECK(s.stats().in_use_bytes == 4096);
    s.Free(a, spec);
    CHECK(s.fake->log == Log{"alloc 4096", "free 4096"});
    CHECK(s.stats().in_use_bytes == 0);
  }
  s.fake->log.clear();
  std::byte theirs[4096];
  const BufferSpec external{.external_ptr = reinterpret_cast<std::uintptr_t>(theirs)};
  const AnyBuf e = s.Alloc(4096, external);
  CHECK(s.At(e) == reinterpret_cast<std::uintptr_t>(theirs));
  CHECK(s.stats().in_use_bytes == 0);
  s.Free(e, external);
  CHECK(s.fake->log.empty());
  const AnyBuf plain = s.Alloc(4096);
  CHECK(s.At(plain) != reinterpret_cast<std::uintptr_t>(theirs));
  s.Free(plain);
  s.fake->log.clear();

  const AnyBuf a = s.Alloc(0), b = s.Alloc(0);
  CHECK(s.device.copyin(a, {}).ok());
  CHECK(s.device.copyout({}, a).ok());
  s.Free(a);
  s.Free(b);
  CHECK(s.fake->log.empty());
  CHECK(s.stats().cached_buffers == 1);
  CHECK(s.cache->Clear().ok());
  CHECK(s.fake->log == Log{"synchronize", "free 4096"});
}

TEST_CASE("sizes that cannot be are refused before any call or flush") {
  for (double waste : {0.0, 0.125, 1.0}) {
    const Stack s({.max_waste = waste});
    s.Free(s.Alloc(512));
    const std::size_t calls = s.fake->log.size();
    const Allocator<void*> record = *s.device.unpack<void*>();
    for (std::size_t n : {SIZE_MAX, SIZE_MAX - 100, SIZE_MAX - 510, SIZE_MAX / 2 + 1}) {
      CHECK(s.device.alloc(n).status().code() == absl::StatusCode::kInvalidArgument);
      CHECK(record.alloc(n, {}).status().code() == absl::StatusCode::kInvalidArgument);
      CHECK(record.alloc(n, {.nolru = true}).status().code() == absl::StatusCode::kInvalidArgument);
    }
    CHECK(s.fake->log.size() == calls);
    CHECK(s.stats().misses == 1);
    CHECK(s.stats().flushes == 0);
    const AnyBuf a = s.Alloc(512), b = s.Alloc(512);
    CHECK(s.At(a) != s.At(b));
    s.Free(a);
    s.Free(b);
  }
  const Stack s;
  s.Free(s.Alloc((std::size_t{1} << 32) + 1));
  CHECK(s.fake->log == Log{"alloc 4294967297"});
}

TEST_CASE("more than the largest single allocation is refused without a flush") {
  auto fake = std::make_shared<Fake>();
  Allocator<void*> record = FakeRecord(fake);
  record.traits.max_alloc_bytes = 1000;
  const Allocator<void*> cached = *Lru(record, {.max_waste = 1});
  REQUIRE(cached.free(*cached.alloc(900, {}), 900, {}).ok());
  CHECK(cached.alloc(1001, {}).status().code() == absl::StatusCode::kResourceExhausted);
  CHECK(Find<LruControl>(cached)->stats().flushes == 0);
  CHECK(fake->log == Log{"alloc 900"});  // not rounded beyond what the record can
}

TEST_CASE("size classes: sizes that keep changing hit, and the inner record sees the size it gave") {
  const Stack s({.max_waste = 0.125});
  s.Free(s.Alloc(100000));
  const AnyBuf buf = s.Alloc(100001);
  CHECK(s.stats().hits == 1);
  CHECK(buf.nbytes() == 100001);
  std::vector<std::byte> bytes(100002);
  CHECK(s.device.copyin(buf, bytes).code() == absl::StatusCode::kOutOfRange);
  CHECK(s.stats().in_use_bytes == 106496);
  s.Free(buf);
  CHECK(s.cache->Clear().ok());
  CHECK(s.fake->log == Log{"alloc 106496", "synchronize", "free 106496"});
}

TEST_CASE("options that mean nothing are refused") {
  for (double waste : {-0.1, 1.5, std::nan(""), std::numeric_limits<double>::infinity()}) {
    CHECK(Lru(FakeRecord(std::make_shared<Fake>()), {.max_waste = waste}).status().code() ==
          absl::StatusCode::kInvalidArgument);
  }
  CHECK(Lru(PackedAllocator()).status().code() == absl::StatusCode::kFailedPrecondition);
}

TEST_CASE("refuses to lie over a checker or a fallback") {
  for (const char* layer : {"checked", "fallback"}) {
    AnyRecord inner = Pack(FakeRecord(std::make_shared<Fake>()))->record();
    MarkLayer(inner, layer);
    MarkLayer(inner, "traced");
    CHECK(LruLayer(inner, {}).status().code() == absl::StatusCode::kInvalidArgument);
  }
  AnyRecord plain = Pack(FakeRecord(std::make_shared<Fake>()))->record();
  MarkLayer(plain, "traced");
  absl::StatusOr<AnyRecord> cached = LruLayer(plain, {});
  REQUIRE(cached.ok());
  CHECK(ContainsLayer(*cached, "lru"));
  CHECK(ContainsLayer(*cached, "traced"));
}

TEST_CASE("everything but alloc and free stays as it is, empty members empty") {
  Allocator<void*> record = FakeRecord(std::make_shared<Fake>());
  record.traits.transfer_domain = 7;
  const Allocator<void*> cached = *Lru(record);
  CHECK(cached.traits.name == "FAKE");
  CHECK(cached.traits.transfer_domain == 7);
  CHECK(cached.traits.min_alignment == 16);
  CHECK_FALSE(cached.offset);
  CHECK_FALSE(cached.transfer);
  CHECK_FALSE(cached.copy_from_disk);
  CHECK_FALSE(cached.host_ptr);
  CHECK_FALSE(cached.memory_info);
  CHECK(cached.synchronize);
}

TEST_CASE("pinned bytes are counted apart") {
  const Stack s;
  const BufferSpec host{.host = true};
  const AnyBuf a = s.Alloc(100, host), b = s.Alloc(30), c = s.Alloc(7, {.host = true, .nolru = true});
  CHECK(s.stats().pinned_in_use_bytes == 107);
  s.Free(a, host);
  s.Free(b);
  s.Free(c, {.host = true, .nolru = true});
  CHECK(s.stats().pinned_in_use_bytes == 0);
  CHECK(s.stats().pinned_cached_bytes == 100);
  CHECK(s.stats().cached_bytes == 130);
  CHECK(s.cache->Clear().ok());
  CHECK(s.stats().pinned_cached_bytes == 0);
}

TEST_CASE("Trim keeps the most recently used") {
  const Stack s;
  std::vector<AnyBuf> bufs;
  for (std::size_t i = 1; i <= 20; ++i) bufs.push_back(s.Alloc(i));
  for (const AnyBuf& buf : bufs) s.Free(buf);
  CHECK(s.cache->Trim(41).ok());
  CHECK(s.stats().cached_bytes == 39);  // 19 + 20
  CHECK(s.stats().evictions == 0);
  CHECK(s.cache->Trim(41).ok());
  CHECK(s.stats().cached_buffers == 2);
  s.Free(s.Alloc(19));
  CHECK(s.stats().hits == 1);
}

TEST_CASE("freed twice, of another record, or with another size: found when asked for") {
  const LruOptions checked{.check_frees = true};
  Stack s(checked);
  const AnyBuf b = s.Alloc(512);
  s.Free(b);
  CHECK(s.device.free(b, 512).code() == absl::StatusCode::kFailedPrecondition);
  CHECK(s.stats().cached_bytes == 512);
  const AnyBuf x = s.Alloc(512), y = s.Alloc(512);
  CHECK(s.At(x) != s.At(y));
  s.Free(x);
  s.Free(y);
  CHECK(s.cache->Clear().ok());
  const std::size_t calls = s.fake->log.size();
  CHECK(s.device.free(y, 512).code() == absl::StatusCode::kFailedPrecondition);
  CHECK(s.fake->log.size() == calls);

  const Allocator<void*> record = *s.device.unpack<void*>();
  void* p = *record.alloc(4096, {});
  int foreign = 0;
  CHECK(record.free(p, 0, {}).code() == absl::StatusCode::kInvalidArgument);
  CHECK(record.free(p, 8192, {}).code() == absl::StatusCode::kInvalidArgument);
  CHECK(record.free(p, 4096, {.host = true}).code() == absl::StatusCode::kInvalidArgument);
  CHECK(record.free(&foreign, 4096, {}).code() == absl::StatusCode::kFailedPrecondition);
  CHECK(*record.alloc(8192, {}) != p);
  CHECK(record.free(p, 4096, {}).ok());
  const Allocator<void*> again = *s.device.unpack<void*>();
  for (auto [at, n] : std::map<void*, std::size_t>(s.fake->live)) {
    if (n == 8192) CHECK(again.free(at, n, {}).ok());
  }
}

TEST_CASE("LRU=0 keeps nothing and stays a layer; a malformed LRU counts as not set") {
  setenv("LRU", "0", 1);
  {
    const Stack s;
    s.Free(s.Alloc(64));
    s.Free(s.Alloc(64));
    CHECK(s.fake->log == Log{"alloc 64", "free 64", "alloc 64", "free 64"});
    CHECK(s.stats().misses == 2);
    CHECK(s.stats().evictions == 0);
    CHECK(s.stats().peak_in_use_bytes == 64);
  }
  for (const char* value : {"1", "abc", "-1", "1e3"}) {
    setenv("LRU", value, 1);
    const Stack s;
    s.Free(s.Alloc(64));
    s.Free(s.Alloc(64));
    CHECK(s.stats().hits == 1);
  }
  unsetenv("LRU");
}

TEST_CASE("the cache lives as long as anything that uses it, and then releases what it kept") {
  auto fake = std::make_shared<Fake>();
  std::optional<PackedAllocator> device = *Lru(*Pack(FakeRecord(fake)));
  auto cache = Find<LruControl>(*device);
  PackedAllocator copy = *device;
  const AnyBuf a = *device->alloc(1), b = *device->alloc(2);
  REQUIRE(device->free(b, 2).ok());
  device.reset();
  CHECK(fake->live.size() == 2);
  REQUIRE(copy.free(a, 1).ok());
  copy = PackedAllocator();
  CHECK(fake->live.size() == 2);
  CHECK(cache->Clear().ok());
  CHECK(fake->live.empty());
}

TEST_CASE("handles that are not bytes") {
  struct Handle {
    std::shared_ptr<int> owner;
    char more[64];
  };
  auto made = std::make_shared<int>(0);
  Allocator<Handle> record;
  record.traits.name = "HANDLES";
  record.alloc = [made](std::size_t, const BufferSpec&) -> absl::StatusOr<Handle> { return Handle{made, {}}; };
  record.free = [](const Handle&, std::size_t, const BufferSpec&) { return absl::OkStatus(); };
  record.copyin = [](const Handle&, absl::Span<const std::byte>) { return absl::OkStatus(); };
  record.copyout = [](absl::Span<std::byte>, const Handle&) { return absl::OkStatus(); };
  record.addr = [](const Handle& h) { return DeviceAddress{reinterpret_cast<std::uintptr_t>(h.owner.get()), 0}; };
  {
    const PackedAllocator device = *Lru(*Pack(record), {.max_bytes = 100});
    for (int i = 0; i < 3; ++i) {
      const AnyBuf a = *device.alloc(60), b = *device.alloc(61);
      CHECK(a.get<Handle>()->owner == made);
      CHECK(device.free(a, 60).ok());
      CHECK(device.free(b, 61).ok());
    }
    CHECK(Find<LruControl>(device)->stats().evictions == 3);
  }
  CHECK(made.use_count() == 2);  // here and in `record`
}

}  // namespace
}  // namespace packalloc
