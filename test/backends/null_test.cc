#include "packalloc/backends/null.h"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "packalloc/packed_allocator.h"

namespace packalloc {
namespace {

using Code = absl::StatusCode;

std::size_t Live(const Allocator<void*>& null) {
  const MemoryInfo info = *null.memory_info();
  return info.total_bytes - info.free_bytes;
}

TEST_CASE("addresses are distinct, aligned, apart by the size, and nobody's memory") {
  Allocator<void*> null = NullAllocator();
  std::uintptr_t end = 0;
  for (std::size_t alignment : {std::size_t{0}, std::size_t{1}, std::size_t{4096}, kMaxAlignment, std::size_t{0}}) {
    for (std::size_t nbytes : {std::size_t{1}, std::size_t{100}, std::size_t{1} << 40}) {
      absl::StatusOr<void*> buf = null.alloc(nbytes, {.alignment = alignment});
      REQUIRE(buf.ok());
      const std::uintptr_t address = null.addr(*buf).value;
      CHECK(address % std::max<std::size_t>(alignment, 64) == 0);
      CHECK(address >= end);
      CHECK(address >= std::uintptr_t{1} << 55);
      end = address + nbytes;
      CHECK(end < std::uintptr_t{1} << 56);
      CHECK(null.free(*buf, nbytes, {.alignment = alignment}).ok());
    }
  }
  CHECK(Live(null) == 0);
}

TEST_CASE("no byte moves") {
  absl::StatusOr<PackedAllocator> null = Pack(NullAllocator());
  REQUIRE(null.ok());
  absl::StatusOr<AnyBuf> a = null->alloc(4);
  absl::StatusOr<AnyBuf> b = null->alloc(4, {.zero = true});
  std::vector<std::byte> host(4, std::byte{9});
  CHECK(null->copyin(*a, host).ok());
  CHECK(null->transfer(*b, *a, 4).ok());
  CHECK(null->copyout(absl::MakeSpan(host), *b).ok());
  CHECK(host == std::vector<std::byte>(4, std::byte{9}));
  CHECK(null->host_ptr(*a).status().code() == Code::kUnimplemented);
  absl::StatusOr<AnyBuf> view = null->offset(*a, 2, 2);
  REQUIRE(view.ok());
  CHECK(null->addr(*view)->value == null->addr(*a)->value + 2);
  CHECK(null->free(*a, 4).ok());
  CHECK(null->free(*b, 4, {.zero = true}).ok());
}

TEST_CASE("memory_info follows what is live, whatever the spec") {
  Allocator<void*> null = NullAllocator({.total_bytes = 1000});
  absl::StatusOr<void*> a = null.alloc(100, {});
  REQUIRE(a.ok());
  CHECK(Live(null) == 128);
  absl::StatusOr<void*> b = null.alloc(1 << 20, {});
  REQUIRE(b.ok());
  CHECK(null.memory_info()->free_bytes == 0);  // more than there is: not a limit
  CHECK(null.free(*b, 1 << 20, {}).ok());
  int mine = 0;
  const BufferSpec external{.external_ptr = reinterpret_cast<std::uintptr_t>(&mine)};
  absl::StatusOr<void*> c = null.alloc(sizeof mine, external);
  REQUIRE(c.ok());
  CHECK(*c == &mine);
  CHECK(Live(null) == 128);
  CHECK(null.free(*c, sizeof mine, external).ok());
  absl::StatusOr<void*> empty = null.alloc(0, {.alignment = 4096});
  REQUIRE(empty.ok());
  CHECK(null.free(*empty, 0, {.alignment = 4096}).ok());
  CHECK(null.free(*a, 100, {}).ok());
  CHECK(Live(null) == 0);
}

TEST_CASE("bad requests are refused without taking anything") {
  Allocator<void*> null = NullAllocator();
  constexpr std::size_t kMax = std::numeric_limits<std::size_t>::max();
  for (std::size_t nbytes : {kMax, kMax - 100, kMax - 510, kMax / 2 + 1}) {
    CHECK(null.alloc(nbytes, {}).status().code() == Code::kInvalidArgument);
  }
  CHECK(null.alloc(kMax / 2, {}).status().code() == Code::kResourceExhausted);
  CHECK(null.alloc(64, {.alignment = 3}).status().code() == Code::kInvalidArgument);
  CHECK(Live(null) == 0);
  absl::StatusOr<void*> a = null.alloc(4294967297, {});
  REQUIRE(a.ok());
  CHECK(Live(null) == 4294967297 + 63);
}

TEST_CASE("threads never get the same address, and the count comes out even") {
  Allocator<void*> null = NullAllocator();
  std::vector<std::vector<void*>> got(4);
  std::vector<std::thread> threads;
  for (std::vector<void*>& mine : got) {
    threads.emplace_back([&null, &mine] {
      for (int i = 0; i < 5000; ++i) {
        mine.push_back(*null.alloc(100, {}));
        if (i % 2 == 0) static_cast<void>(null.free(mine.back(), 100, {}));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<void*> all;
  for (const std::vector<void*>& mine : got) all.insert(mine.begin(), mine.end());
  CHECK(all.size() == 20000);
  CHECK(Live(null) == 10000 * 128);
}

}  // namespace
}  // namespace packalloc
