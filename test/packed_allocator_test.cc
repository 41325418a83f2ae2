#include "packalloc/packed_allocator.h"

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "test/count_news.h"
#include "test/fake_record.h"

namespace packalloc {
namespace {

using Code = absl::StatusCode;
constexpr std::size_t kMax = std::numeric_limits<std::size_t>::max();

// A record over handles of type Buf, which `make` makes of a number; without memory.
template <typename Buf>
Allocator<Buf> HandleRecord(std::function<Buf(std::size_t)> make) {
  Allocator<Buf> record;
  record.traits.name = "HANDLES";
  record.alloc = [make](std::size_t nbytes, const BufferSpec&) -> absl::StatusOr<Buf> { return make(nbytes); };
  record.free = [](const Buf&, std::size_t, const BufferSpec&) { return absl::OkStatus(); };
  record.copyin = [](const Buf&, absl::Span<const std::byte>) { return absl::OkStatus(); };
  record.copyout = [](absl::Span<std::byte>, const Buf&) { return absl::OkStatus(); };
  record.addr = [](const Buf&) { return DeviceAddress{}; };
  return record;
}

struct FakeDevice {
  std::shared_ptr<Fake> fake = std::make_shared<Fake>();
  PackedAllocator packed = *Pack(FakeRecord(fake));
};

template <std::size_t kBytes>
struct Plain {
  std::array<unsigned char, kBytes> bytes;
};

template <typename Buf>
std::size_t NewsOfPair(Buf value) {
  const PackedAllocator packed = *Pack(HandleRecord<Buf>([value](std::size_t) { return value; }));
  const std::size_t before = CountNews();
  {
    absl::StatusOr<AnyBuf> buf = packed.alloc(100);
    REQUIRE(buf.ok());
    AnyBuf copy = *buf;
    AnyBuf moved = std::move(copy);
    copy = moved;
    CHECK(std::memcmp(copy.get<Buf>(), &value, sizeof value) == 0);
    CHECK(packed.free(copy, 100).ok());
  }
  return CountNews() - before;
}

TEST_CASE("trivially copyable handles of up to 32 bytes never touch the heap") {
  CHECK(sizeof(AnyBuf) == 64);
  int target = 0;
  CHECK(NewsOfPair<void*>(&target) == 0);
  CHECK(NewsOfPair(Plain<1>{{42}}) == 0);
  CHECK(NewsOfPair(Plain<24>{{1, 2, 3}}) == 0);
  CHECK(NewsOfPair(Plain<32>{{1, 2, 3}}) == 0);
  struct alignas(16) Aligned {
    double values[4];
  };
  CHECK(NewsOfPair(Aligned{{1, 2, 3, 4}}) == 0);
  CHECK(NewsOfPair(Plain<33>{{1, 2, 3}}) > 0);  // larger: works, on the heap
  struct alignas(64) OverAligned {
    std::array<unsigned char, 64> bytes;
  };
  const PackedAllocator packed = *Pack(HandleRecord<OverAligned>([](std::size_t) { return OverAligned{}; }));
  const AnyBuf buf = *packed.alloc(1);
  CHECK(reinterpret_cast<std::uintptr_t>(buf.get<OverAligned>()) % 64 == 0);
}

TEST_CASE("handles that own something, in place and on the heap, are copied, moved and destroyed right") {
  struct Small {  // in place
    std::shared_ptr<int> life;
  };
  struct Large {  // on the heap
    std::shared_ptr<int> life;
    std::array<char, 100> rest{};
  };
  struct ThrowingMove {  // on the heap, as a move of the box must not throw
    std::shared_ptr<int> life;
    ThrowingMove() = default;
    explicit ThrowingMove(std::shared_ptr<int> l) : life(std::move(l)) {}
    ThrowingMove(const ThrowingMove&) = default;
    ThrowingMove(ThrowingMove&& other) noexcept(false) : life(std::move(other.life)) {}
    ThrowingMove& operator=(const ThrowingMove&) = default;
  };
  const auto check = [](auto make) {
    using Buf = decltype(make(std::shared_ptr<int>()));
    auto life = std::make_shared<int>(7);
    {
      const PackedAllocator packed = *Pack(HandleRecord<Buf>([life, make](std::size_t) { return make(life); }));
      const long before = life.use_count();
      {
        AnyBuf a = *packed.alloc(10);
        CHECK(life.use_count() == before + 1);
        AnyBuf b = a;
        CHECK(life.use_count() == before + 2);
        AnyBuf c = std::move(a);
        CHECK(life.use_count() == before + 2);
        CHECK(a.empty());  // NOLINT(bugprone-use-after-move)
        CHECK(a.owner() == 0);
        CHECK(packed.free(a, 10).code() == Code::kInvalidArgument);
        b = c;
        b = std::move(c);
        a = b;
        const AnyBuf& self = a;
        a = self;
        a = std::move(*const_cast<AnyBuf*>(&self));
        CHECK(*a.get<Buf>()->life == 7);
        CHECK(life.use_count() == before + 2);
        CHECK(a.nbytes() == 10);
        CHECK(a.owner() == packed.id());
        CHECK(a.serial() == b.serial());
        CHECK(packed.free(a, 10).ok());
      }
      CHECK(life.use_count() == before);
    }
    CHECK(life.use_count() == 1);
  };
  check([](std::shared_ptr<int> life) { return Small{std::move(life)}; });
  check([](std::shared_ptr<int> life) { return Large{std::move(life), {}}; });
  check([](std::shared_ptr<int> life) { return ThrowingMove(std::move(life)); });
}

TEST_CASE("a copy of a handle that throws leaves the box that was assigned to as it was") {
  struct Fussy {
    bool throws = false;
    Fussy() = default;
    explicit Fussy(bool t) : throws(t) {}
    Fussy(const Fussy& other) : throws(other.throws) {
      if (throws) throw std::runtime_error("copy");
    }
    Fussy(Fussy&&) noexcept = default;
    Fussy& operator=(const Fussy&) = default;
  };
  AnyBuf calm = AnyBuf::Of(Fussy(false), 1);
  const AnyBuf fussy = AnyBuf::Of(Fussy(true), 2);
  CHECK_THROWS_AS(calm = fussy, std::runtime_error);
  CHECK(calm.nbytes() == 1);
  CHECK_FALSE(calm.get<Fussy>()->throws);
}

TEST_CASE("a missing required member is named, an empty optional one stays empty") {
  auto fake = std::make_shared<Fake>();
  const auto pack_without = [&fake](auto member) {
    Allocator<void*> record = FakeRecord(fake);
    record.*member = nullptr;
    return Pack(record);
  };
  const auto check = [&](auto member, const char* name) {
    const absl::Status refused = pack_without(member).status();
    CHECK(refused.code() == Code::kInvalidArgument);
    CHECK(absl::StrContains(refused.message(), std::string(" ") + name + " "));
    CHECK(absl::StrContains(refused.message(), "FAKE"));
  };
  check(&Allocator<void*>::alloc, "alloc");
  check(&Allocator<void*>::free, "free");
  check(&Allocator<void*>::copyin, "copyin");
  check(&Allocator<void*>::copyout, "copyout");
  check(&Allocator<void*>::addr, "addr");
  CHECK(Pack(Allocator<void*>{}).status().code() == Code::kInvalidArgument);
  CHECK(Pack(AnyRecord{}).status().code() == Code::kInvalidArgument);

  Allocator<void*> unaligned = FakeRecord(fake);
  unaligned.traits.min_alignment = 48;
  CHECK(Pack(unaligned).status().code() == Code::kInvalidArgument);

  Allocator<void*> bare = FakeRecord(fake);
  bare.offset = nullptr;
  bare.transfer = nullptr;
  const PackedAllocator packed = *Pack(bare);
  CHECK_FALSE(packed.supports_offset());
  CHECK_FALSE(packed.supports_transfer());
  CHECK_FALSE(packed.supports_copy_from_disk());
  CHECK_FALSE(packed.supports_host_ptr());
  CHECK_FALSE(packed.record().supports_offset());
  CHECK_FALSE(packed.unpack<void*>()->supports_offset());
  const AnyBuf buf = *packed.alloc(8);
  for (const absl::Status& status :
       {packed.offset(buf, 4, 0).status(), packed.offset(buf, 0, 0).status(), packed.transfer(buf, buf, 8),
        packed.copy_from_disk(buf, DiskExtent{nullptr, 0, 8}, 8), packed.host_ptr(buf).status(),
        packed.memory_info().status()}) {
    CHECK(status.code() == Code::kUnimplemented);
    CHECK(absl::StrContains(status.message(), "FAKE"));
  }
  CHECK(packed.synchronize().ok());
  CHECK(packed.free(buf, 8).ok());
}

TEST_CASE("a std::function wrapped in a std::function of its own type stays empty") {
  Allocator<void*> record = FakeRecord(std::make_shared<Fake>());
  record.offset = decltype(record.offset)(decltype(record.offset)());
  CHECK_FALSE(Pack(record)->supports_offset());
  record.alloc = decltype(record.alloc)(decltype(record.alloc)());
  CHECK(Pack(record).status().code() == Code::kInvalidArgument);
  // Through layers' adapters too: no member appears that the record below does not have.
  Allocator<void*> bare = FakeRecord(std::make_shared<Fake>());
  bare.offset = nullptr;
  bare.transfer = nullptr;
  const AnyRecord erased = Erase<void*>(std::make_shared<const Allocator<void*>>(bare));
  const Allocator<void*> typed = Typed<void*>(erased);
  for (bool present :
       {static_cast<bool>(erased.offset), static_cast<bool>(erased.transfer), static_cast<bool>(erased.copy_from_disk),
        static_cast<bool>(erased.host_ptr), static_cast<bool>(erased.memory_info),
        static_cast<bool>(erased.synchronize), static_cast<bool>(typed.offset), static_cast<bool>(typed.transfer),
        static_cast<bool>(typed.copy_from_disk), static_cast<bool>(typed.host_ptr),
        static_cast<bool>(typed.memory_info), static_cast<bool>(typed.synchronize)}) {
    CHECK_FALSE(present);
  }
}

// Every operation of `packed` that takes `buf` as its own.
std::vector<absl::Status> AllOperations(const PackedAllocator& packed, const AnyBuf& buf) {
  std::vector<std::byte> host(4);
  return {packed.free(buf, buf.nbytes()),
          packed.copyin(buf, host),
          packed.copyout(absl::MakeSpan(host), buf),
          packed.addr(buf).status(),
          packed.offset(buf, 4, 0).status(),
          packed.transfer(buf, buf, 4),
          packed.copy_from_disk(buf, DiskExtent{nullptr, 0, 4}, 4),
          packed.host_ptr(buf).status()};
}

TEST_CASE("a handle of another allocator is refused by every operation, and nothing is called") {
  FakeDevice a;
  FakeDevice b;
  const AnyBuf foreign = *a.packed.alloc(8);
  const PackedAllocator other_type = *Pack(HandleRecord<int>([](std::size_t) { return 1; }));
  const AnyBuf other = *other_type.alloc(8);
  const AnyBuf forged = AnyBuf::Of<void*>(nullptr, 8);
  for (const AnyBuf& wrong : {foreign, other, forged, AnyBuf()}) {
    for (const absl::Status& status : AllOperations(b.packed, wrong)) {
      CHECK(status.code() == Code::kInvalidArgument);
    }
  }
  CHECK(b.fake->frees == 0);
  CHECK(b.fake->copies == 0);
  // The empty handle is told apart from the foreign one.
  CHECK(absl::StrContains(b.packed.free(AnyBuf(), 0).message(), "empty"));
  CHECK(absl::StrContains(b.packed.free(foreign, 8).message(), "another allocator"));
  CHECK(a.packed.free(foreign, 8).ok());
}

TEST_CASE("an empty packed allocator refuses every call") {
  FakeDevice device;
  PackedAllocator moved_from = device.packed;
  const PackedAllocator keeps = std::move(moved_from);
  const AnyBuf buf = *device.packed.alloc(4);
  for (const PackedAllocator& empty : {PackedAllocator(), moved_from}) {  // NOLINT(bugprone-use-after-move)
    CHECK_FALSE(empty);
    std::vector<absl::Status> answers = AllOperations(empty, buf);
    answers.push_back(empty.alloc(4).status());
    answers.push_back(empty.alloc(0).status());
    answers.push_back(empty.memory_info().status());
    answers.push_back(empty.synchronize());
    answers.push_back(empty.WithRecord(device.packed.record()).status());
    answers.push_back(ApplyLayer(empty, [](AnyRecord r) -> absl::StatusOr<AnyRecord> { return r; }).status());
    for (const absl::Status& status : answers) CHECK(status.code() == Code::kFailedPrecondition);
    CHECK(empty.id() == 0);
    CHECK(empty.name().empty());
    CHECK_FALSE(empty.supports_offset());
    CHECK_FALSE(empty.supports_host_ptr());
    CHECK_FALSE(empty.unpack<void*>().has_value());
    CHECK(Find<int>(empty) == nullptr);
    CHECK_FALSE(empty.same_transfer_domain(device.packed));
    CHECK_FALSE(device.packed.same_transfer_domain(empty));
    CHECK(empty == PackedAllocator());
  }
  CHECK(keeps == device.packed);
  CHECK(keeps.free(buf, 4).ok());
}

TEST_CASE("copies of a packed allocator are one: allocate from one, free by the other") {
  FakeDevice device;
  const PackedAllocator copy = device.packed;
  CHECK(copy == device.packed);
  CHECK(copy.id() == device.packed.id());
  CHECK_FALSE(copy == *Pack(FakeRecord(device.fake)));
  const AnyBuf buf = *device.packed.alloc(8);
  CHECK(copy.free(buf, 8).ok());
  CHECK(device.fake->live.empty());
}

TEST_CASE("ranges: checked before the record is called, without wrapping") {
  FakeDevice device;
  const AnyBuf buf = *device.packed.alloc(64);
  const AnyBuf large = *device.packed.alloc(128);
  std::vector<std::byte> host(65, std::byte{1});
  CHECK(device.packed.copyin(buf, host).code() == Code::kOutOfRange);
  CHECK(device.packed.copyout(absl::MakeSpan(host), buf).code() == Code::kOutOfRange);
  CHECK(device.packed.transfer(buf, large, 65).code() == Code::kOutOfRange);
  CHECK(device.packed.transfer(large, buf, 65).code() == Code::kOutOfRange);
  CHECK(device.packed.copy_from_disk(buf, DiskExtent{nullptr, 0, 100}, 65).code() == Code::kOutOfRange);
  CHECK(device.packed.copy_from_disk(buf, DiskExtent{nullptr, 0, 10}, 11).code() == Code::kOutOfRange);
  CHECK(device.packed.offset(buf, 8, 64).status().code() == Code::kOutOfRange);
  CHECK(device.packed.offset(buf, kMax - 4, 8).status().code() == Code::kOutOfRange);
  CHECK(device.packed.offset(buf, 2, kMax).status().code() == Code::kOutOfRange);
  CHECK(device.fake->copies == 0);
  const absl::Status message = device.packed.copyin(buf, host);
  CHECK(absl::StrContains(message.message(), "65"));
  CHECK(absl::StrContains(message.message(), "64"));

  const AnyBuf v = *device.packed.offset(large, 64, 32);
  CHECK(device.packed.offset(v, 8, 57).status().code() == Code::kOutOfRange);  // inside the base, outside the view
  const AnyBuf w = *device.packed.offset(v, 8, 56);
  CHECK(device.packed.addr(w)->value == device.packed.addr(large)->value + 88);
  CHECK(device.packed.copyin(w, absl::MakeConstSpan(host).first(9)).code() == Code::kOutOfRange);
  CHECK(device.packed.offset(v, 0, 64).ok());
  CHECK(device.packed.free(buf, 64).ok());
  CHECK(device.packed.free(large, 128).ok());
}

TEST_CASE("views belong to their base: they have its serial number and are not freed") {
  FakeDevice device;
  const AnyBuf buf = *device.packed.alloc(64);
  for (std::size_t nbytes : {std::size_t{64}, std::size_t{8}, std::size_t{0}}) {
    const AnyBuf view = *device.packed.offset(buf, nbytes, 0);
    CHECK(view.is_view());
    CHECK(view.serial() == buf.serial());
    CHECK(view.nbytes() == nbytes);
    const absl::Status refused = device.packed.free(view, nbytes);
    CHECK(refused.code() == Code::kInvalidArgument);
    CHECK(absl::StrContains(refused.message(), "view"));
    CHECK(device.packed.offset(view, 0, 0)->is_view());
  }
  CHECK_FALSE(buf.is_view());
  CHECK(device.fake->frees == 0);
  CHECK(device.packed.free(buf, 64).ok());
}

TEST_CASE("free with another size is refused, naming both") {
  FakeDevice device;
  const AnyBuf buf = *device.packed.alloc(4096);
  for (std::size_t wrong : {std::size_t{0}, std::size_t{4095}, std::size_t{8192}, kMax}) {
    const absl::Status refused = device.packed.free(buf, wrong);
    CHECK(refused.code() == Code::kInvalidArgument);
    CHECK(absl::StrContains(refused.message(), std::to_string(wrong)));
    CHECK(absl::StrContains(refused.message(), "4096"));
  }
  CHECK(device.fake->frees == 0);
  CHECK(device.packed.free(buf, 4096).ok());
  const AnyBuf empty = *device.packed.alloc(0);
  CHECK(device.packed.free(empty, 1).code() == Code::kInvalidArgument);
  CHECK(device.packed.free(empty, 0).ok());
}

TEST_CASE("sizes and specs that nothing can have are refused before the record is called") {
  FakeDevice device;
  for (std::size_t nbytes : {kMax, kMax - 100, kMax - 510, kMax / 2 + 1}) {
    CHECK(device.packed.alloc(nbytes).status().code() == Code::kInvalidArgument);
  }
  for (std::size_t alignment : {std::size_t{3}, std::size_t{48}, std::size_t{1} << 63}) {
    CHECK(device.packed.alloc(64, {.alignment = alignment}).status().code() == Code::kInvalidArgument);
    CHECK(device.packed.alloc(0, {.alignment = alignment}).status().code() == Code::kInvalidArgument);
  }
  CHECK(device.packed.alloc(8, {.external_ptr = 0}).status().code() == Code::kInvalidArgument);
  CHECK(device.packed.alloc(8, {.alignment = 64, .external_ptr = 8}).status().code() == Code::kInvalidArgument);
  CHECK(device.packed.alloc(8, {.zero = true, .external_ptr = 64}).status().code() == Code::kInvalidArgument);
  CHECK(device.fake->allocs == 0);

  Allocator<void*> limited = FakeRecord(device.fake);
  limited.traits.max_alloc_bytes = 1000;
  const PackedAllocator packed = *Pack(limited);
  const absl::Status refused = packed.alloc(1001).status();
  CHECK(refused.code() == Code::kResourceExhausted);
  CHECK(absl::StrContains(refused.message(), "1001"));
  CHECK(absl::StrContains(refused.message(), "1000"));
  CHECK(device.fake->allocs == 0);
  const AnyBuf buf = *packed.alloc(1000);
  CHECK(packed.free(buf, 1000).ok());

  std::size_t seen = 0;
  const PackedAllocator counting = *Pack(HandleRecord<int>([&seen](std::size_t nbytes) {
    seen = nbytes;
    return 0;
  }));
  CHECK(counting.alloc((std::size_t{1} << 32) + 1).ok());
  CHECK(seen == 4294967297);
}

TEST_CASE("zero bytes: every operation succeeds and the record is never called") {
  struct NoDefault {
    explicit NoDefault(int) {}
  };
  FakeDevice device;
  const PackedAllocator awkward = *Pack(HandleRecord<NoDefault>([](std::size_t) -> NoDefault { throw 1; }));
  for (const PackedAllocator& packed : {device.packed, awkward}) {
    const AnyBuf a = *packed.alloc(0);
    const AnyBuf b = *packed.alloc(0, {.zero = true, .alignment = 64});
    CHECK_FALSE(a.empty());
    CHECK(packed.copyin(a, {}).ok());
    CHECK(packed.copyout({}, a).ok());
    CHECK(*packed.addr(a) == DeviceAddress{});
    CHECK(packed.copyin(a, std::vector<std::byte>(1)).code() == Code::kOutOfRange);
    if (packed.supports_transfer()) CHECK(packed.transfer(a, b, 0).ok());
    if (packed.supports_offset()) CHECK(packed.offset(a, 0, 0).ok());
    CHECK(packed.free(a, 0).ok());
    CHECK(packed.free(b, 0, {.zero = true, .alignment = 64}).ok());
  }
  CHECK(device.fake->allocs == 0);
  CHECK(device.fake->frees == 0);
  CHECK(device.fake->copies == 0);
  const AnyBuf some = *device.packed.alloc(8);
  CHECK(device.packed.copyin(some, {}).ok());
  CHECK(device.packed.transfer(some, some, 0).ok());
  CHECK(device.fake->copies == 0);
  CHECK(device.packed.free(some, 8).ok());
}

TEST_CASE("transfer takes buffers of one domain, across records and layers, and no others") {
  auto fake = std::make_shared<Fake>();
  Allocator<void*> record = FakeRecord(fake);
  record.traits.transfer_domain = NewDomain();
  const PackedAllocator a = *Pack(record);
  const PackedAllocator b = *Pack(record);
  const PackedAllocator layered = *ApplyLayer(a, [](AnyRecord r) -> absl::StatusOr<AnyRecord> { return r; });
  const PackedAllocator apart = *Pack(FakeRecord(fake));
  CHECK(a.same_transfer_domain(b));
  CHECK(a.same_transfer_domain(layered));
  CHECK_FALSE(a.same_transfer_domain(apart));
  CHECK(layered.id() != a.id());

  const AnyBuf x = *a.alloc(4);
  const AnyBuf y = *b.alloc(4);
  const AnyBuf z = *layered.alloc(4);
  const AnyBuf w = *apart.alloc(4);
  CHECK(a.copyin(x, std::vector<std::byte>(4, std::byte{5})).ok());
  CHECK(b.transfer(y, x, 4).ok());
  CHECK(a.transfer(z, y, 4).ok());  // neither is a's own
  std::vector<std::byte> back(4);
  CHECK(layered.copyout(absl::MakeSpan(back), z).ok());
  CHECK(back == std::vector<std::byte>(4, std::byte{5}));
  CHECK(a.transfer(x, w, 4).code() == Code::kInvalidArgument);
  CHECK(a.transfer(w, x, 4).code() == Code::kInvalidArgument);
  CHECK(a.free(z, 4).code() == Code::kInvalidArgument);
  CHECK(layered.free(x, 4).code() == Code::kInvalidArgument);
  for (const auto& [packed, buf] : {std::pair(a, x), std::pair(b, y), std::pair(layered, z), std::pair(apart, w)}) {
    CHECK(packed.free(buf, 4).ok());
  }
}

TEST_CASE("unpack gives the typed record, through layers, or nothing for another type") {
  FakeDevice device;
  CHECK_FALSE(device.packed.unpack<int>().has_value());
  std::optional<Allocator<void*>> record = device.packed.unpack<void*>();
  REQUIRE(record.has_value());
  void* block = *record->alloc(8, {});
  CHECK(device.fake->live.count(block) == 1);
  CHECK(record->free(block, 8, {}).ok());

  int layer_saw = 0;
  const PackedAllocator layered = *ApplyLayer(device.packed, [&](AnyRecord r) -> absl::StatusOr<AnyRecord> {
    r.alloc = [inner = r.alloc, &layer_saw](std::size_t nbytes, const BufferSpec& spec) {
      ++layer_saw;
      return inner(nbytes, spec);
    };
    return r;
  });
  CHECK_FALSE(layered.unpack<int>().has_value());
  record = layered.unpack<void*>();
  REQUIRE(record.has_value());
  block = *record->alloc(8, {});
  CHECK(layer_saw == 1);
  const std::vector<std::byte> bytes(8, std::byte{3});
  CHECK(record->copyin(block, bytes).ok());
  void* view = *record->offset(block, 4, 4);
  CHECK(record->addr(view).value == reinterpret_cast<std::uintptr_t>(block) + 4);
  CHECK(record->transfer(block, view, 4).ok());
  std::vector<std::byte> back(8);
  CHECK(record->copyout(absl::MakeSpan(back), block).ok());
  CHECK(back == bytes);
  CHECK(record->free(block, 8, {}).ok());
}

TEST_CASE("a record over boxes checks the type of what it is given") {
  FakeDevice device;
  const AnyBuf wrong = AnyBuf::Of(1, 4);
  const AnyRecord& record = device.packed.record();
  std::vector<std::byte> host(4);
  for (const AnyBuf& buf : {wrong, AnyBuf()}) {
    for (const absl::Status& status :
         {record.free(buf, 4, {}), record.copyin(buf, host), record.copyout(absl::MakeSpan(host), buf),
          record.offset(buf, 1, 1).status(), record.transfer(buf, buf, 4)}) {
      CHECK(status.code() == Code::kInvalidArgument);
    }
    CHECK(record.addr(buf) == DeviceAddress{});
  }
}

TEST_CASE("Find sees through layers, the outermost of a type first") {
  auto inner = std::make_shared<int>(1);
  auto outer = std::make_shared<int>(2);
  auto other = std::make_shared<std::string>("native");
  Allocator<void*> record = FakeRecord(std::make_shared<Fake>());
  record.controls.Add(inner);
  record.controls.Add(other);
  CHECK(Find<int>(record) == inner);
  const PackedAllocator packed = *Pack(record);
  CHECK(Find<int>(packed) == inner);
  const auto layer = [&outer](AnyRecord r) -> absl::StatusOr<AnyRecord> {
    r.controls.Add(outer);
    return r;
  };
  const PackedAllocator layered = *ApplyLayer(packed, layer);
  CHECK(Find<int>(layered) == outer);
  CHECK(Find<std::string>(layered) == other);
  CHECK(Find<double>(layered) == nullptr);
  CHECK(Find<int>(packed) == inner);
  CHECK(Find<int>(*ApplyLayer(record, layer)) == outer);
}

TEST_CASE("a layer's error comes out of ApplyLayer, and one that drops a member is refused") {
  FakeDevice device;
  const auto fails = [](AnyRecord) -> absl::StatusOr<AnyRecord> { return absl::InvalidArgumentError("no"); };
  CHECK(ApplyLayer(device.packed, fails).status().code() == Code::kInvalidArgument);
  CHECK(ApplyLayer(FakeRecord(device.fake), fails).status().code() == Code::kInvalidArgument);
  const auto drops = [](AnyRecord r) -> absl::StatusOr<AnyRecord> {
    r.free = nullptr;
    return r;
  };
  CHECK(ApplyLayer(device.packed, drops).status().code() == Code::kInvalidArgument);
}

TEST_CASE("a record over boxes can itself be packed, and layered handles are stamped by the outermost box") {
  FakeDevice device;
  const PackedAllocator outer = *Pack(device.packed.record());
  const AnyBuf buf = *outer.alloc(16);
  CHECK(buf.owner() == outer.id());
  CHECK(buf.nbytes() == 16);
  CHECK(buf.get<void*>() != nullptr);
  CHECK(outer.free(buf, 16).ok());
  CHECK(device.fake->live.empty());
}

TEST_CASE("ids and serial numbers are never reused, over threads") {
  std::set<std::uint64_t> ids;
  for (int i = 0; i < 100; ++i) ids.insert(Pack(FakeRecord(std::make_shared<Fake>()))->id());
  CHECK(ids.size() == 100);
  CHECK(ids.count(0) == 0);

  const PackedAllocator packed = *Pack(HandleRecord<int>([](std::size_t) { return 0; }));
  std::vector<std::vector<std::uint64_t>> serials(4);
  std::vector<std::thread> threads;
  for (std::vector<std::uint64_t>& mine : serials) {
    threads.emplace_back([&packed, &mine] {
      for (int i = 0; i < 1000; ++i) mine.push_back(packed.alloc(1)->serial());
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<std::uint64_t> all;
  for (const std::vector<std::uint64_t>& mine : serials) all.insert(mine.begin(), mine.end());
  CHECK(all.size() == 4000);
  CHECK(all.count(0) == 0);
}

TEST_CASE("errors and exceptions of the record pass through, and the next call works") {
  FakeDevice device;
  device.fake->on_alloc = [] { return absl::UnavailableError("device lost"); };
  CHECK(device.packed.alloc(8).status() == absl::UnavailableError("device lost"));
  device.fake->on_alloc = []() -> absl::Status { throw std::runtime_error("driver"); };
  CHECK_THROWS_AS(device.packed.alloc(8).IgnoreError(), std::runtime_error);
  device.fake->on_alloc = [] { return absl::OkStatus(); };
  const AnyBuf buf = *device.packed.alloc(8);
  device.fake->on_free = []() -> absl::Status { throw 42; };
  CHECK_THROWS_AS(device.packed.free(buf, 8).IgnoreError(), int);
  device.fake->on_free = [] { return absl::InternalError("busy"); };
  CHECK(device.packed.free(buf, 8) == absl::InternalError("busy"));
  device.fake->on_free = [] { return absl::OkStatus(); };
  CHECK(device.packed.free(buf, 8).ok());
  CHECK(device.fake->live.empty());
}

TEST_CASE("the record's state lives as long as any copy of what was made from it, and no longer") {
  auto fake = std::make_shared<Fake>();
  {
    std::optional<Allocator<void*>> unpacked;
    PackedAllocator layered;
    {
      const PackedAllocator packed = *Pack(FakeRecord(fake));
      layered = *ApplyLayer(packed, [](AnyRecord r) -> absl::StatusOr<AnyRecord> { return r; });
      unpacked = packed.unpack<void*>();
    }
    const AnyBuf buf = *layered.alloc(4);
    CHECK(layered.free(buf, 4).ok());
    layered = PackedAllocator();
    void* block = *unpacked->alloc(4, {});
    CHECK(unpacked->free(block, 4, {}).ok());
  }
  CHECK(fake.use_count() == 1);
}

TEST_CASE("an alloc that replaces the allocator it is called by runs to its end") {
  auto fake = std::make_shared<Fake>();
  auto current = std::make_shared<PackedAllocator>(*Pack(FakeRecord(fake)));
  fake->on_alloc = [current, fake] {
    *current = *Pack(FakeRecord(fake));
    return absl::OkStatus();
  };
  const PackedAllocator holds = *current;  // as the caller of a shared allocator does
  absl::StatusOr<AnyBuf> buf = holds.alloc(8);
  REQUIRE(buf.ok());
  CHECK(current->free(*buf, 8).code() == Code::kInvalidArgument);
  CHECK(holds.free(*buf, 8).ok());
  fake->on_alloc = [] { return absl::OkStatus(); };
}

}  // namespace
}  // namespace packalloc
