// Objects of TVM-FFI where memory runs out, the allocator fails, throws, or makes objects itself.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "packalloc/allocator.h"
#include "packalloc/backends/cpu.h"
#include "packalloc/backends/mock.h"
#include "packalloc/interop/tvm_ffi.h"
#include "packalloc/packed_allocator.h"
#include "test/fake_record.h"
#include "test/interop/fake_tvm_ffi/fake_tvm_ffi.h"
#include "test/interop/installed_objects.h"

namespace packalloc {
namespace {

constexpr std::int32_t kNode = 200;

struct FaultyObjects : Installed {
  explicit FaultyObjects(const TvmFfiObjectOptions& options = {}, MockOptions mock_options = {})
      : Installed(options, std::move(mock_options)) {}
  ~FaultyObjects() { FakeTvmFfiClearRaised(); }
};

void Drop(void* object) { REQUIRE(TVMFFIObjectDecRef(object) == 0); }

const std::size_t kSizes[] = {48, 4000, 100000};

TEST_CASE("where the allocator has no memory, or throws, objects come from malloc, and are counted") {
  for (const bool throws : {false, true}) {
    CAPTURE(throws);
    FaultyObjects s;
    if (throws) {
      s.mock->ThrowAll(Member::kAlloc, std::make_exception_ptr(std::runtime_error("broken")));
    } else {
      s.mock->FailAll(Member::kAlloc, absl::ResourceExhaustedError("full"));
    }
    std::vector<void*> objects;
    for (const std::size_t size : kSizes) {
      for (const std::size_t alignment : {8, 64}) objects.push_back(FakeTvmFfiMake(size, alignment, kNode));
    }
    for (void* object : objects) REQUIRE(object != nullptr);
    CHECK(reinterpret_cast<std::uintptr_t>(objects[1]) % 64 == 0);
    TvmFfiObjectStats stats = s.objects.stats();
    CHECK(stats.malloc_allocations == objects.size());
    CHECK(stats.allocations == objects.size());
    CHECK(stats.live == objects.size());
    CHECK(stats.failed_allocations == 0);
    CHECK(std::string(FakeTvmFfiRaisedKind()).empty());
    s.mock->ClearFailures();  // memory is there again, and used
    void* object = FakeTvmFfiMake(48, 8, kNode);
    CHECK(s.objects.stats().malloc_allocations == objects.size());
    Drop(object);
    for (void* from_malloc : objects) Drop(from_malloc);
  }
}

TEST_CASE("memory that the CPU cannot reach is no memory") {
  FaultyObjects s;
  s.mock->FailAll(Member::kHostPtr, absl::FailedPreconditionError("gone"));
  for (const std::size_t size : kSizes) Drop(FakeTvmFfiMake(size, 8, kNode));
  CHECK(s.objects.stats().malloc_allocations == 3);
  CHECK(s.mock->live_blocks() == 0);
  s.mock->ClearFailures();
  s.mock->ThrowAll(Member::kHostPtr, std::make_exception_ptr(std::runtime_error("broken")));
  for (const std::size_t size : kSizes) Drop(FakeTvmFfiMake(size, 8, kNode));
  CHECK(s.objects.stats().malloc_allocations == 6);
  CHECK(s.mock->live_blocks() == 0);
}

TEST_CASE("memory that is not as aligned as asked is no memory") {
  Allocator<CpuBuf> record = CpuAllocator();
  bool shifted = false;
  record.host_ptr = [inner = record.host_ptr, &shifted](const CpuBuf& buf) -> absl::StatusOr<std::byte*> {
    absl::StatusOr<std::byte*> begin = inner(buf);
    if (begin.ok() && shifted) *begin += 16;
    return begin;
  };
  const absl::StatusOr<TvmFfiObjectAllocator> objects = InstallTvmFfiObjectAllocator(*Pack(record));
  REQUIRE(objects.ok());
  shifted = true;
  std::vector<void*> made;
  for (const std::size_t size : kSizes) made.push_back(FakeTvmFfiMake(size, 64, kNode));
  made.push_back(FakeTvmFfiMake(48, 8, kNode));
  shifted = false;
  for (void* object : made) {
    REQUIRE(object != nullptr);
    Drop(object);
  }
  CHECK(objects->stats().malloc_allocations == made.size());
  CHECK(objects->stats().failed_releases == 0);
  CHECK(objects->Uninstall().ok());
}

TEST_CASE("without the fallback: NULL, with the error raised; raising it makes an object, which malloc serves") {
  for (const std::size_t size : kSizes) {
    CAPTURE(size);
    FaultyObjects s({.malloc_fallback = false});
    s.mock->FailAll(Member::kAlloc, absl::ResourceExhaustedError("full"));
    CHECK(FakeTvmFfiMake(size, 8, kNode) == nullptr);
    CHECK(std::string(FakeTvmFfiRaisedKind()) == "MemoryError");
    const std::string message = FakeTvmFfiRaisedMessage();
    CAPTURE(message);
    CHECK(message.find("type 200, " + std::to_string(size) + " bytes") != std::string::npos);
    CHECK(message.find("MOCK") != std::string::npos);
    TvmFfiObjectStats stats = s.objects.stats();
    CHECK(stats.failed_allocations == 1);
    CHECK(stats.malloc_allocations == 1);  // the error
    CHECK(stats.live == 1);
    FakeTvmFfiClearRaised();
    s.mock->ClearFailures();
    Drop(FakeTvmFfiMake(size, 8, kNode));
  }
}

TEST_CASE("std::bad_alloc by option, with nothing raised") {
  FaultyObjects s({.malloc_fallback = false, .out_of_memory = TvmFfiOutOfMemory::kThrowBadAlloc});
  s.mock->FailAll(Member::kAlloc, absl::ResourceExhaustedError("full"));
  for (const std::size_t size : kSizes) CHECK_THROWS_AS(FakeTvmFfiMake(size, 8, kNode), std::bad_alloc);
  CHECK(std::string(FakeTvmFfiRaisedKind()).empty());
  CHECK(s.objects.stats().failed_allocations == 3);
  CHECK(s.objects.stats().live == 0);
}

TEST_CASE("sizes that no memory has are refused before any call, with the fallback too") {
  constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max();
  FaultyObjects s;
  const std::size_t calls = s.mock->log().Count(Member::kAlloc);
  for (const std::size_t size : {kMost, kMost - 15, kMost - 100, kMost - 4096, kMost / 2 + 1}) {
    CAPTURE(size);
    CHECK(FakeTvmFfiMake(size, 8, kNode) == nullptr);
    CHECK(std::string(FakeTvmFfiRaisedKind()) == "MemoryError");
    FakeTvmFfiClearRaised();
  }
  CHECK(s.objects.stats().failed_allocations == 5);
  CHECK(s.mock->log().Count(Member::kAlloc) <= calls + 1);  // a slab, for the errors
}

TEST_CASE("alignments that are none are refused, and the error is raised") {
  FaultyObjects s;
  for (const std::size_t alignment : {std::size_t{3}, std::size_t{12}, std::size_t{48}, std::size_t{1} << 31,
                                      std::size_t{1} << 63, std::numeric_limits<std::size_t>::max()}) {
    CAPTURE(alignment);
    CHECK(FakeTvmFfiMake(48, alignment, kNode) == nullptr);
    CHECK(std::string(FakeTvmFfiRaisedKind()) == "ValueError");
    CHECK(std::string(FakeTvmFfiRaisedMessage()).find("power of two") != std::string::npos);
    FakeTvmFfiClearRaised();
  }
}

TEST_CASE("an allocator that makes and drops objects itself") {
  FaultyObjects s;
  std::vector<void*> outside;
  std::vector<void*> inside;
  int depth = 0;
  int deepest = 0;
  const auto make_and_drop = [&]() -> absl::Status {
    deepest = std::max(deepest, depth);
    if (depth > 0) return absl::InternalError("asked for memory while it is asked for memory");
    ++depth;
    for (int i = 0; i < 100; ++i) inside.push_back(FakeTvmFfiMake(48, 8, kNode));
    inside.push_back(FakeTvmFfiMake(100000, 8, kNode));
    for (int i = 0; i < 10 && !outside.empty(); ++i) {  // of those that are not made here
      Drop(outside.back());
      outside.pop_back();
    }
    while (inside.size() > 30) {
      Drop(inside.back());
      inside.pop_back();
    }
    --depth;
    return absl::OkStatus();
  };
  s.mock->OnCall(Member::kAlloc, make_and_drop);
  s.mock->OnCall(Member::kFree, make_and_drop);
  for (int i = 0; i < 5000; ++i) {
    void* object = FakeTvmFfiMake(48, 8, kNode);
    REQUIRE(object != nullptr);
    outside.push_back(object);
  }
  for (int i = 0; i < 10; ++i) Drop(FakeTvmFfiMake(100000, 8, kNode));
  while (!outside.empty()) {
    void* object = outside.back();
    outside.pop_back();
    Drop(object);
  }
  CHECK(s.objects.Trim().ok());
  CHECK(deepest == 0);
  CHECK(s.objects.stats().malloc_allocations > 0);  // those in the middle of an allocation
  CHECK(s.objects.stats().failed_releases == 0);
  s.mock->OnCall(Member::kAlloc, [] { return absl::OkStatus(); });
  s.mock->OnCall(Member::kFree, [] { return absl::OkStatus(); });
  for (void* object : inside) Drop(object);
}

TEST_CASE("memory that the allocator does not take back is counted, and Trim says so") {
  auto record = MockAllocator();
  auto mock = Find<MockControl>(record);
  const absl::StatusOr<TvmFfiObjectAllocator> objects = InstallTvmFfiObjectAllocator(*Pack(record));
  REQUIRE(objects.ok());
  void* large = FakeTvmFfiMake(100000, 8, kNode);
  Drop(FakeTvmFfiMake(48, 8, kNode));
  mock->FailNth(Member::kFree, 1, absl::InternalError("broken"));
  Drop(large);
  CHECK(objects->stats().failed_releases == 1);
  mock->ThrowNth(Member::kFree, 1, std::make_exception_ptr(std::runtime_error("thrown")));
  const absl::Status trimmed = objects->Trim();
  CHECK(trimmed.message() == "thrown");
  CHECK(objects->stats().failed_releases == 2);
  CHECK(objects->stats().slabs == 0);
  CHECK(objects->Trim().ok());
  for (const std::size_t size : {48, 100000}) {  // memory that was of no use, and is not taken back either
    mock->FailNth(Member::kHostPtr, 1, absl::FailedPreconditionError("gone"));
    mock->ThrowNth(Member::kFree, 1, std::make_exception_ptr(std::runtime_error("thrown")));
    Drop(FakeTvmFfiMake(size, 8, kNode));
  }
  CHECK(objects->stats().failed_releases == 4);
  CHECK(mock->live_blocks() == 4);
  CHECK(objects->Uninstall().ok());
}

TEST_CASE("what cannot be installed is refused, and what was installed stays") {
  tvm_ffi_abi::CustomAllocator* const before = TVMFFIGetCustomAllocator();
  const auto code_of = [](const PackedAllocator& packed, const TvmFfiObjectOptions& options = {}) {
    return InstallTvmFfiObjectAllocator(packed, options).status().code();
  };
  CHECK(code_of({}) == absl::StatusCode::kInvalidArgument);
  const PackedAllocator cpu = *Pack(CpuAllocator());
  CHECK(code_of(cpu, {.spec = {.alignment = 64}}) == absl::StatusCode::kInvalidArgument);
  CHECK(code_of(cpu, {.spec = {.zero = true}}) == absl::StatusCode::kInvalidArgument);
  CHECK(code_of(cpu, {.spec = {.external_ptr = 4096}}) == absl::StatusCode::kInvalidArgument);
  CHECK(code_of(*Pack(MockAllocator({.capacity_bytes = 1000}))) == absl::StatusCode::kResourceExhausted);
  CHECK(code_of(*Pack(MockAllocator({.host_accessible = false}))) == absl::StatusCode::kFailedPrecondition);
  for (const bool hosts : {true, false}) {  // memory that cannot be aligned to a slab; the error says which is wrong
    Allocator<MockBuf> record = MockAllocator();
    const auto mock = Find<MockControl>(record);
    if (!hosts) {
      record.host_ptr = [](const MockBuf&) -> absl::StatusOr<std::byte*> {
        return absl::FailedPreconditionError("device memory");
      };
    }
    record.alloc = [inner = record.alloc](std::size_t nbytes, const BufferSpec& spec) -> absl::StatusOr<MockBuf> {
      if (spec.alignment > 4096) return absl::InvalidArgumentError("no such alignment");
      return inner(nbytes, spec);
    };
    const absl::Status refused = InstallTvmFfiObjectAllocator(*Pack(record)).status();
    CHECK(refused.code() == (hosts ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kFailedPrecondition));
    CHECK(refused.message().find(hosts ? "a slab of TVM-FFI's objects" : "not the host's") != absl::string_view::npos);
    CHECK(mock->live_blocks() == 0);
  }
  CHECK(code_of(*Pack(FakeRecord(std::make_shared<Fake>()))) == absl::StatusCode::kFailedPrecondition);  // no host_ptr

  const auto heap = std::make_shared<Fake>();  // with host_ptr, and aligned to anything but 64 KiB
  Allocator<void*> misaligned = FakeRecord(heap);
  misaligned.host_ptr = [](void* const& block) -> absl::StatusOr<std::byte*> {
    return static_cast<std::byte*>(block) + 16;
  };
  CHECK(code_of(*Pack(misaligned)) == absl::StatusCode::kInternal);
  CHECK(heap->live.empty());

  FakeTvmFfiFailToSet(true);
  CHECK(code_of(cpu) == absl::StatusCode::kInternal);
  FakeTvmFfiFailToSet(false);
  CHECK(TVMFFIGetCustomAllocator() == before);

  // Page-locked memory of a device is host memory.
  const absl::StatusOr<TvmFfiObjectAllocator> pinned =
      InstallTvmFfiObjectAllocator(*Pack(MockAllocator({.host_accessible = false})), {.spec = {.host = true}});
  REQUIRE(pinned.ok());
  Drop(FakeTvmFfiMake(48, 8, kNode));
  Drop(FakeTvmFfiMake(48000, 64, kNode));
  CHECK(pinned->stats().malloc_allocations == 0);
  CHECK(pinned->Uninstall().ok());
}

TEST_CASE("an empty handle") {
  const TvmFfiObjectAllocator none;
  CHECK(none.Probe().status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK(none.Trim().code() == absl::StatusCode::kFailedPrecondition);
  CHECK(none.Uninstall().code() == absl::StatusCode::kFailedPrecondition);
  CHECK(none.stats().allocations == 0);
  CHECK(none.LeakReport().empty());
}

}  // namespace
}  // namespace packalloc
