// Allocators over the C ABI, both ways: the contract suite, and structs that are old, new or lie.
#include "packalloc/c/record.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "lib/c/last_error.h"
#include "packalloc/buffer.h"
#include "packalloc/c_record.h"
#include "packalloc/disk_file.h"
#include "packalloc/layers/lru.h"
#include "packalloc/testing/contract.h"
#include "test/c/mock_device.h"
#include "test/temp_dir.h"
#include "test/testing/mock_subject.h"

namespace packalloc::testing {
namespace {

// C++ -> C: the struct of a fresh packed allocator.
packalloc_record Exported(const absl::StatusOr<PackedAllocator>& packed) {
  packalloc_record record = PACKALLOC_RECORD_INIT;
  REQUIRE(packed.ok());
  REQUIRE(ToC(*packed, &record).ok());
  return record;
}

ContractOptions RoundTripOptions(const MockSubject& subject, bool packed) {
  ContractOptions options = subject.Options();
  options.skips = {{"alloc.exceptions_pass", "no exception crosses C: it becomes a status"}};
  options.checks_ranges = packed;
  return options;
}

TEST_CASE("what a C function answers becomes a status, with what it says where it says anything") {
  CHECK(StatusFromC(77, "HEAP", "alloc", nullptr).message() == "HEAP: alloc answered 77, which is no packalloc_status");
  CHECK(StatusFromC(-1, "HEAP", "alloc", "why").message() ==
        "HEAP: alloc answered -1, which is no packalloc_status: why");
  CHECK(StatusFromC(PACKALLOC_NOT_FOUND, "HEAP", "alloc", "why").message() == "HEAP: alloc: why");
}

TEST_CASE("C++ to C to C++ keeps the contract: eager, lazy, opaque handles, as a GPU") {
  for (const MockOptions& mock :
       {MockOptions{}, MockOptions{.lazy = true}, MockOptions{.address_is_pointer = false, .lazy = true},
        MockOptions{.host_accessible = false, .lazy = true}}) {
    const MockSubject subject(mock);
    RunContract([subject] { return FromC(Exported(Pack(subject()))); }, RoundTripOptions(subject, false));
    RunContract([subject] { return Pack(*FromC(Exported(Pack(subject())))); }, RoundTripOptions(subject, true));
  }
}

TEST_CASE("C++ to C to C++ keeps the contract with a cache on either side") {
  const MockSubject subject({.lazy = true});
  RunContract([subject] { return Pack(*FromC(Exported(Lru(*Pack(subject()))))); }, RoundTripOptions(subject, true));
  RunContract([subject] { return Lru(*Pack(*FromC(Exported(Pack(subject()))))); }, RoundTripOptions(subject, true));
}

TEST_CASE("empty members stay empty on both ways") {
  const std::array members{Member::kOffset, Member::kTransfer, Member::kHostPtr, Member::kMemoryInfo,
                           Member::kSynchronize};
  for (const Member absent : members) {
    const packalloc_record c = Exported(Pack(MockAllocator({.absent = {absent}})));
    CHECK((c.offset == nullptr) == (absent == Member::kOffset));
    CHECK((c.transfer == nullptr) == (absent == Member::kTransfer));
    CHECK((c.host_ptr == nullptr) == (absent == Member::kHostPtr));
    CHECK((c.memory_info == nullptr) == (absent == Member::kMemoryInfo));
    CHECK((c.synchronize == nullptr) == (absent == Member::kSynchronize));
    CHECK((c.copy_from_disk == nullptr));
    const auto back = FromC(c);
    REQUIRE(back.ok());
    CHECK(back->supports_offset() == (absent != Member::kOffset));
    CHECK(back->supports_transfer() == (absent != Member::kTransfer));
    CHECK(static_cast<bool>(back->host_ptr) == (absent != Member::kHostPtr));
    CHECK(static_cast<bool>(back->memory_info) == (absent != Member::kMemoryInfo));
    CHECK(static_cast<bool>(back->synchronize) == (absent != Member::kSynchronize));
    CHECK_FALSE(back->supports_copy_from_disk());
  }
}

TEST_CASE("the struct keeps the allocator, and the record the struct, until the last buffer") {
  Allocator<MockBuf> mock = MockAllocator();
  const auto control = Find<MockControl>(mock);
  Buffer buffer;
  {
    const auto back = Pack(*FromC(Exported(Pack(mock))));
    mock = {};
    buffer = Buffer(*back, 100);
  }
  CHECK(buffer.EnsureAllocated().ok());
  CHECK(control->live_blocks() == 1);
  buffer = Buffer();
  CHECK(control->live_blocks() == 0);
}

TEST_CASE("the codes and sentences of the inner allocator come through") {
  const Allocator<MockBuf> mock = MockAllocator({.capacity_bytes = 100});
  const auto back = *Pack(*FromC(Exported(Pack(mock))));
  const absl::Status exhausted = back.alloc(101).status();
  CHECK(exhausted.code() == absl::StatusCode::kResourceExhausted);
  CHECK(std::string(exhausted.message()).find("101") != std::string::npos);
  for (int code = 1; code <= 16; ++code) {
    Find<MockControl>(mock)->FailNth(Member::kAlloc, 1, {static_cast<absl::StatusCode>(code), "just so"});
    const absl::Status status = back.alloc(10).status();
    CHECK(status.code() == static_cast<absl::StatusCode>(code));
    CHECK(std::string(status.message()).find("just so") != std::string::npos);
  }
}

TEST_CASE("handles that were freed or made up are refused by the exported struct") {
  const packalloc_record c = Exported(Pack(MockAllocator()));
  const packalloc_buffer_spec spec = PACKALLOC_BUFFER_SPEC_INIT;
  packalloc_raw_buffer buffer{};
  REQUIRE(c.alloc(c.self, 100, &spec, &buffer) == PACKALLOC_OK);
  packalloc_raw_buffer view{};
  REQUIRE(c.offset(c.self, buffer, 10, 90, &view) == PACKALLOC_OK);
  CHECK(c.offset(c.self, view, 10, 1, &view) == PACKALLOC_OUT_OF_RANGE);
  CHECK(c.free(c.self, view, 10, &spec) == PACKALLOC_INVALID_ARGUMENT);
  CHECK(c.free(c.self, buffer, 99, &spec) == PACKALLOC_INVALID_ARGUMENT);
  CHECK(c.free(c.self, buffer, 100, &spec) == PACKALLOC_OK);
  std::array<char, 10> bytes{};
  packalloc_device_address address{};
  for (const packalloc_raw_buffer& bad : {buffer, view, packalloc_raw_buffer{}, packalloc_raw_buffer{{1, 2, 3, 4}}}) {
    CHECK(c.free(c.self, bad, 100, &spec) == PACKALLOC_INVALID_ARGUMENT);
    CHECK(c.copyin(c.self, bad, bytes.data(), 10) == PACKALLOC_INVALID_ARGUMENT);
    CHECK(c.copyout(c.self, bytes.data(), bad, 10) == PACKALLOC_INVALID_ARGUMENT);
    CHECK(c.addr(c.self, bad, &address) == PACKALLOC_INVALID_ARGUMENT);
    CHECK(c.transfer(c.self, bad, bad, 10) == PACKALLOC_INVALID_ARGUMENT);
  }
  CHECK(c.alloc(c.self, 100, &spec, nullptr) == PACKALLOC_INVALID_ARGUMENT);
  CHECK(c.copyin(c.self, buffer, nullptr, 1) == PACKALLOC_INVALID_ARGUMENT);
  c.release(c.self);
  CHECK(c.alloc(c.self, 100, &spec, &buffer) == PACKALLOC_INVALID_ARGUMENT);
  c.release(c.self);  // once too often: nothing happens
}

TEST_CASE(
    "buffers of another allocator are refused by the exported struct; of another export of the same they are not") {
  const absl::StatusOr<PackedAllocator> mock = Pack(MockAllocator());
  const packalloc_record c = Exported(mock);
  const packalloc_record same = Exported(mock);
  const packalloc_record other = Exported(Pack(MockAllocator({.name = "OTHER"})));
  const packalloc_buffer_spec spec = PACKALLOC_BUFFER_SPEC_INIT;
  packalloc_raw_buffer buffer{};
  REQUIRE(c.alloc(c.self, 100, &spec, &buffer) == PACKALLOC_OK);
  packalloc_raw_buffer view{};
  REQUIRE(same.offset(same.self, buffer, 100, 0, &view) == PACKALLOC_OK);
  std::array<char, 10> bytes{};
  packalloc_device_address address{};
  void* pointer = nullptr;
  for (const packalloc_raw_buffer& foreign : {buffer, view}) {
    CHECK(other.copyin(other.self, foreign, bytes.data(), 10) == PACKALLOC_INVALID_ARGUMENT);
    CHECK(other.copyout(other.self, bytes.data(), foreign, 10) == PACKALLOC_INVALID_ARGUMENT);
    CHECK(other.addr(other.self, foreign, &address) == PACKALLOC_INVALID_ARGUMENT);
    CHECK(other.offset(other.self, foreign, 10, 0, &view) == PACKALLOC_INVALID_ARGUMENT);
    CHECK(other.host_ptr(other.self, foreign, &pointer) == PACKALLOC_INVALID_ARGUMENT);
    CHECK(other.transfer(other.self, foreign, foreign, 10) == PACKALLOC_INVALID_ARGUMENT);
  }
  CHECK(other.free(other.self, buffer, 100, &spec) == PACKALLOC_INVALID_ARGUMENT);
  CHECK(std::string(other.last_error(other.self)) ==
        "the buffer is of another allocator, MOCK: this struct is an export of OTHER");
  CHECK(same.copyin(same.self, buffer, bytes.data(), 10) == PACKALLOC_OK);
  c.release(c.self);
  CHECK(c.free(c.self, buffer, 100, &spec) == PACKALLOC_INVALID_ARGUMENT);
  CHECK(same.free(same.self, buffer, 100, &spec) == PACKALLOC_OK);
  same.release(same.self);
  other.release(other.self);
}

// ---- older and newer structs ----

// The struct as a plugin of some later version would have it: a slot more at the end.
struct NewerRecord {
  packalloc_record record;
  packalloc_status (*added)(void* self);
};
packalloc_status MustNotBeCalled(void*) {
  FAIL("a slot that this version does not know was called");
  return PACKALLOC_INTERNAL;
}

TEST_CASE("a struct of an older version: the slots that it lacks are empty, whatever lies behind it") {
  packalloc_record c = Exported(Pack(MockAllocator()));
  c.struct_size = offsetof(packalloc_record, host_ptr);
  std::memset(reinterpret_cast<char*>(&c) + c.struct_size, 0xFF, sizeof c - c.struct_size);
  const auto back = FromC(c);
  REQUIRE(back.ok());
  CHECK(back->supports_offset());
  CHECK(back->supports_transfer());
  CHECK_FALSE(static_cast<bool>(back->host_ptr));
  CHECK_FALSE(static_cast<bool>(back->memory_info));
  CHECK(back->controls.Find<NativeHandles>() == nullptr);
  const auto packed = *Pack(*back);
  CHECK(packed.synchronize().ok());
  const auto buffer = packed.alloc(10);
  CHECK(packed.free(*buffer, 10).ok());
  CHECK_FALSE(back->free(packalloc_raw_buffer{}, 10, {}).ok());  // an error without last_error
}

TEST_CASE("a struct of a newer version: the slot that this version does not know is not called") {
  NewerRecord newer{Exported(Pack(MockAllocator())), &MustNotBeCalled};
  newer.record.struct_size = sizeof newer;
  const auto back = FromC(newer.record);
  REQUIRE(back.ok());
  const auto packed = *Pack(*back);
  const auto buffer = packed.alloc(10);
  CHECK(packed.synchronize().ok());
  CHECK(packed.free(*buffer, 10).ok());
}

TEST_CASE("an exported struct goes as far as the caller's: older and newer") {
  const auto packed = *Pack(MockAllocator());
  struct {
    packalloc_record record = PACKALLOC_RECORD_INIT;
    std::uintptr_t added = 77;
    std::uintptr_t behind = 77;
  } newer;
  newer.record.struct_size = sizeof newer.record + sizeof newer.added;
  REQUIRE(ToC(packed, &newer.record).ok());
  CHECK(newer.record.struct_size == sizeof newer.record + sizeof newer.added);
  CHECK(newer.added == 0);
  CHECK(newer.behind == 77);
  newer.record.release(newer.record.self);

  packalloc_record older = PACKALLOC_RECORD_INIT;
  older.struct_size = offsetof(packalloc_record, transfer);
  REQUIRE(ToC(packed, &older).ok());
  CHECK(older.struct_size == offsetof(packalloc_record, transfer));
  CHECK((older.offset != nullptr));
  CHECK((older.transfer == nullptr));  // behind the older struct's end: not written
  older.release(older.self);
}

TEST_CASE("a field that a struct's size ends inside is absent, in both directions") {
  const PackedAllocator packed = *Pack(MockAllocator());
  for (std::size_t size = offsetof(packalloc_record, offset); size < sizeof(packalloc_record); ++size) {
    CAPTURE(size);
    packalloc_record c = PACKALLOC_RECORD_INIT;
    unsigned char* const bytes = reinterpret_cast<unsigned char*>(&c);
    std::memset(bytes + offsetof(packalloc_record, offset), 0xAB, sizeof c - offsetof(packalloc_record, offset));
    c.struct_size = size;
    REQUIRE(ToC(packed, &c).ok());
    const std::size_t whole = size / sizeof(void*) * sizeof(void*);
    for (std::size_t at = whole; at < sizeof c; ++at) CHECK(bytes[at] == 0xAB);
    const auto read = FromC(c);
    REQUIRE(read.ok());
    CHECK((read->offset != nullptr) == (whole > offsetof(packalloc_record, offset)));
    CHECK((read->host_ptr != nullptr) == (whole > offsetof(packalloc_record, host_ptr)));
  }
}

TEST_CASE("structs that make no sense are refused, and stay the caller's") {
  const packalloc_record good = Exported(Pack(MockAllocator()));
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{8}, offsetof(packalloc_record, addr), std::size_t{65537}, SIZE_MAX}) {
    packalloc_record bad = good;
    bad.struct_size = size;
    CHECK(FromC(bad).status().code() == absl::StatusCode::kInvalidArgument);
    CHECK(ToC(*Pack(MockAllocator()), &bad).code() == absl::StatusCode::kInvalidArgument);
  }
  packalloc_record bad = good;
  bad.min_alignment = 3;
  CHECK(FromC(bad).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(ToC(*Pack(MockAllocator()), nullptr).code() == absl::StatusCode::kInvalidArgument);
  CHECK(ToC(PackedAllocator(), &bad).code() == absl::StatusCode::kFailedPrecondition);
  CHECK(FromC(good).ok());  // nobody released it
}

TEST_CASE("an allocator that lies is found out") {
  const auto answer = [](auto change) {
    packalloc_record c = Exported(Pack(MockAllocator()));
    change(c);
    return *Pack(*FromC(c));
  };
  // A number that is no status, from every slot that gives one.
  const auto garbage = answer([](packalloc_record& c) {
    c.alloc = [](void*, std::size_t, const packalloc_buffer_spec*, packalloc_raw_buffer*) {
      return packalloc_status{4711};
    };
    c.synchronize = [](void*) { return packalloc_status{-1}; };
  });
  CHECK(garbage.alloc(10).status().code() == absl::StatusCode::kInternal);
  CHECK(garbage.synchronize().code() == absl::StatusCode::kInternal);
  CHECK(std::string(garbage.alloc(10).status().message()).find("4711") != std::string::npos);

  const auto null = answer([](packalloc_record& c) {
    c.host_ptr = [](void*, packalloc_raw_buffer, void**) { return packalloc_status{PACKALLOC_OK}; };
  });
  const auto buffer = *null.alloc(10);
  CHECK(null.host_ptr(buffer).status().code() == absl::StatusCode::kInternal);
  CHECK(null.free(buffer, 10).ok());

  const auto sizes = answer([](packalloc_record& c) {
    c.memory_info = [](void*, packalloc_memory_info* out) {
      *out = {200, 100};
      return packalloc_status{PACKALLOC_OK};
    };
    c.max_alloc_bytes = 50;
  });
  CHECK(sizes.memory_info().status().code() == absl::StatusCode::kInternal);
  CHECK(sizes.alloc(51).status().code() == absl::StatusCode::kResourceExhausted);
}

// ---- disk sources ----

packalloc_status ReadPattern(void* self, std::uint64_t offset, void* dest, std::size_t nbytes) {
  ++*static_cast<int*>(self);
  for (std::size_t i = 0; i < nbytes; ++i) {
    static_cast<unsigned char*>(dest)[i] = static_cast<unsigned char>((offset + i) % 251);
  }
  return PACKALLOC_OK;
}

TEST_CASE("copy_from_disk of an exported struct takes a source that somebody else made, in chunks") {
  for (const bool views : {true, false}) {
    MockOptions options{.read_extent = [](absl::Span<std::byte>, const DiskExtent&) { return absl::OkStatus(); }};
    if (!views) options.absent = {Member::kOffset};
    const packalloc_record c = Exported(Pack(MockAllocator(options)));
    constexpr std::size_t kBytes = (std::size_t{9} << 20) + 5;
    int reads = 0;
    const packalloc_disk_source source{sizeof source, &reads, kBytes, &ReadPattern};
    const packalloc_buffer_spec spec = PACKALLOC_BUFFER_SPEC_INIT;
    packalloc_raw_buffer buffer{};
    REQUIRE(c.alloc(c.self, kBytes, &spec, &buffer) == PACKALLOC_OK);
    CHECK(c.copy_from_disk(c.self, buffer, &source, kBytes) == PACKALLOC_OK);
    CHECK(reads == (views ? 3 : 1));
    std::vector<unsigned char> bytes(kBytes);
    CHECK(c.copyout(c.self, bytes.data(), buffer, kBytes) == PACKALLOC_OK);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < kBytes; ++i) wrong += bytes[i] != i % 251 ? 1 : 0;
    CHECK(wrong == 0);
    CHECK(c.copy_from_disk(c.self, buffer, &source, kBytes + 1) == PACKALLOC_OUT_OF_RANGE);
    CHECK(c.copy_from_disk(c.self, buffer, nullptr, 1) == PACKALLOC_INVALID_ARGUMENT);
    CHECK(c.free(c.self, buffer, kBytes, &spec) == PACKALLOC_OK);
    c.release(c.self);
  }
}

TEST_CASE("an allocator in C reads files through the library, and the file's own error comes back") {
  const TempDir folder;
  const std::string path = folder.Write("weights.bin", std::string(100, 'x') + std::string(100, 'y'));
  packalloc_record c = Exported(Pack(MockAllocator()));
  c.copy_from_disk = [](void*, packalloc_raw_buffer, const packalloc_disk_source* src, std::size_t nbytes) {
    std::array<char, 64> bytes{};
    REQUIRE(nbytes == 64);
    const packalloc_status read = src->read(src->self, 60, bytes.data(), 64);
    if (read == PACKALLOC_OK) CHECK(std::string(bytes.data(), 64) == std::string(40, 'x') + std::string(24, 'y'));
    return read;
  };
  const auto packed = *Pack(*FromC(c));
  const auto buffer = *packed.alloc(64);
  const auto file = *DiskFile::Open(path);
  CHECK(packed.copy_from_disk(buffer, {file, 0, 200}, 64).ok());
  const absl::Status outside = packed.copy_from_disk(buffer, {file, 0, 100}, 64);
  CHECK(outside.code() == absl::StatusCode::kOutOfRange);
  const absl::Status short_file = packed.copy_from_disk(buffer, {file, 100, 200}, 64);
  CHECK(short_file.code() == absl::StatusCode::kOutOfRange);
  CHECK(std::string(short_file.message()).find(path) != std::string::npos);
  CHECK(packed.free(buffer, 64).ok());
}

}  // namespace
}  // namespace packalloc::testing
