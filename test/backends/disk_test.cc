#include "packalloc/backends/disk.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "packalloc/packed_allocator.h"
#include "packalloc/registry.h"
#include "packalloc/testing/contract.h"
#include "test/temp_dir.h"

namespace packalloc {
namespace {

testing::ContractOptions DiskContract() {
  testing::ContractOptions options;
  options.skips = testing::WithoutHooks();
  for (const char* member : {"copy_from_disk", "host_ptr", "memory_info"}) {
    options.skips.merge(testing::WithoutMember(member));
  }
  for (const char* clause : {"spec.external_ptr", "spec.external_ptr_not_freed", "spec.external_ptr_not_cached"}) {
    options.skips[clause] = "a file does not wrap host memory";
  }
  return options;
}

// Gives each allocation a place of its own in one large file, so that the clauses that need two buffers apply.
absl::StatusOr<Allocator<DiskExtent>> WithPlaces(const std::string& path) {
  absl::StatusOr<Allocator<DiskExtent>> disk = DiskAllocator(path, {.write = true});
  if (!disk.ok()) return disk;
  Allocator<DiskExtent> placed = *disk;
  auto next = std::make_shared<std::atomic<std::size_t>>(0);
  placed.alloc = [inner = *disk, next](std::size_t nbytes, const BufferSpec& spec) -> absl::StatusOr<DiskExtent> {
    if (nbytes > (std::size_t{1} << 40)) return inner.alloc(nbytes, spec);
    const std::size_t at = next->fetch_add(nbytes);
    absl::StatusOr<DiskExtent> all = inner.alloc(at + nbytes, spec);
    if (!all.ok()) return all;
    return inner.offset(*all, nbytes, at);
  };
  return placed;
}

TEST_CASE("a writable file keeps the contract, but for what a file cannot be") {
  const TempDir dir;
  dir.Write("f", "");
  testing::ContractOptions options = DiskContract();
  SUBCASE("raw") {
    testing::RunContract([&] { return WithPlaces(dir / "f"); }, options);
  }
  SUBCASE("packed") {
    testing::RunContract(
        [&]() -> absl::StatusOr<PackedAllocator> {
          absl::StatusOr<Allocator<DiskExtent>> disk = WithPlaces(dir / "f");
          if (!disk.ok()) return disk.status();
          return Pack(*disk);
        },
        options);
  }
  SUBCASE("as it is, where two allocations are the same bytes") {
    for (const char* clause :
         {"alloc.distinct_memory", "alloc.too_large", "free.pending_work", "copyin.consumes_source_in_flight",
          "addr.distinct", "transfer.exact", "transfer.ordered", "transfer.views", "transfer.out_of_range",
          "threads.any_member", "lifetime.copies_share_state", "threads.record_copies"}) {
      options.skips[clause] = "the file is the memory: every allocation starts at its first byte";
    }
    testing::RunContract([&] { return DiskAllocator(dir / "f", {.write = true}); }, options);
  }
}

TEST_CASE("a file that was opened for reading is neither written, grown nor created") {
  const TempDir dir;
  const std::string bytes = TextPattern(10000);
  const std::string path = dir.Write("f", bytes);
  absl::StatusOr<Allocator<DiskExtent>> disk = DiskAllocator(path);
  REQUIRE(disk.ok());
  CHECK(!disk->supports_transfer());
  CHECK(disk->alloc(10001, {}).status().code() == absl::StatusCode::kOutOfRange);
  absl::StatusOr<DiskExtent> all = disk->alloc(10000, {});
  REQUIRE(all.ok());
  const std::byte one{};
  CHECK(disk->copyin(*all, {&one, 1}).code() == absl::StatusCode::kFailedPrecondition);
  CHECK(std::filesystem::file_size(path) == 10000);
  CHECK(DiskAllocator(dir / "none").status().code() == absl::StatusCode::kNotFound);
  CHECK(!std::filesystem::exists(dir / "none"));
}

TEST_CASE("views of views are places of the file, and stay when the path is gone") {
  const TempDir dir;
  const std::string bytes = TextPattern(10000);
  const std::string path = dir.Write("f", bytes);
  DiskExtent view;
  {
    absl::StatusOr<Allocator<DiskExtent>> disk = DiskAllocator(path);
    REQUIRE(disk.ok());
    absl::StatusOr<DiskExtent> all = disk->alloc(10000, {});
    absl::StatusOr<DiskExtent> part = disk->offset(*all, 5000, 1000);
    view = *disk->offset(*part, 64, 128);
    CHECK(disk->offset(*part, 64, 4990).status().code() == absl::StatusCode::kOutOfRange);
    CHECK(disk->addr(view).byte_offset == 1128);
  }
  std::filesystem::remove(path);
  std::string got(64, '\0');
  REQUIRE(view.file->Read(view.offset, {reinterpret_cast<std::byte*>(got.data()), got.size()}).ok());
  CHECK(got == bytes.substr(1128, 64));
}

TEST_CASE("by name: every Open reads what lies at the path then, options included") {
  const TempDir dir;
  const std::string path = dir.Write("a+b", "old");
  const std::string name = "DISK:\"" + path + "\"";
  const auto content = [](const PackedAllocator& disk) {
    std::string bytes(3, '\0');
    REQUIRE(disk.copyout({reinterpret_cast<std::byte*>(bytes.data()), 3}, *disk.alloc(3)).ok());
    return bytes;
  };
  absl::StatusOr<PackedAllocator> first = Open(name);
  REQUIRE_MESSAGE(first.ok(), first.status().ToString());
  std::filesystem::rename(dir.Write("new", "new"), path);
  CHECK(content(*Open(name)) == "new");
  CHECK(content(*first) == "old");
  CHECK(Open(name)->copyin(*Open(name)->alloc(3), {}).code() == absl::StatusCode::kInvalidArgument);
  absl::StatusOr<PackedAllocator> writable = Open(name, DiskOptions{.write = true});
  REQUIRE(writable.ok());
  const std::byte bytes[] = {std::byte{'a'}, std::byte{'b'}, std::byte{'c'}};
  CHECK(writable->copyin(*writable->alloc(3), bytes).ok());
  CHECK(content(*Open(name)) == "abc");
  CHECK(Open("DISK").status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(Open("DISK:" + dir.path()).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(Open(name, 42).status().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("what a file cannot give is refused by name") {
  const TempDir dir;
  absl::StatusOr<Allocator<DiskExtent>> disk = DiskAllocator(dir.Write("f", TextPattern(100)));
  REQUIRE(disk.ok());
  const std::pair<BufferSpec, const char*> specs[] = {
      {{.uncached = true}, "uncached"}, {{.cpu_access = true}, "cpu_access"}, {{.host = true}, "host"},
      {{.zero = true}, "zero"},         {{.alignment = 3}, "alignment"},      {{.external_ptr = 4096}, "external_ptr"}};
  for (const auto& [spec, name] : specs) {
    const absl::Status refused = disk->alloc(10, spec).status();
    CHECK(refused.code() == absl::StatusCode::kInvalidArgument);
    CHECK_MESSAGE(absl::StrContains(refused.message(), name), refused.ToString());
  }
  CHECK(disk->alloc(10, {.nolru = true, .alignment = 4096}).ok());
  CHECK(disk->free(DiskExtent{}, 0, {}).code() == absl::StatusCode::kInvalidArgument);
  std::byte one{};
  CHECK(disk->copyout({&one, 1}, DiskExtent{nullptr, 0, 1}).code() == absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace packalloc
