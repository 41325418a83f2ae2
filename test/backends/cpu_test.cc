#include "packalloc/backends/cpu.h"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "backends/cpu/system_memory.h"
#include "packalloc/packed_allocator.h"
#include "test/sanitizers.h"
#include "test/smaps.h"

namespace packalloc {
namespace {

constexpr std::size_t kMib = std::size_t{1} << 20;
using Code = absl::StatusCode;

bool Mentions(const absl::Status& status, std::size_t number) {
  return absl::StrContains(status.message(), std::to_string(number));
}

std::size_t Mappings() {
  std::ifstream maps("/proc/self/maps");
  std::size_t lines = 0;
  for (std::string line; std::getline(maps, line);) ++lines;
  return lines;
}

TEST_CASE("memory is as aligned as asked, and 64 bytes by default") {
  Allocator<CpuBuf> cpu = CpuAllocator();
  for (std::size_t nbytes :
       {std::size_t{1}, std::size_t{100}, std::size_t{4096}, 2 * kMib - 1, 2 * kMib, 3 * kMib + 1}) {
    for (std::size_t alignment = 0; alignment <= 64 * kMib; alignment = alignment == 0 ? 1 : alignment * 2) {
      const BufferSpec spec{.alignment = alignment};
      std::vector<CpuBuf> bufs;
      for (int i = 0; i < 3; ++i) {
        absl::StatusOr<CpuBuf> buf = cpu.alloc(nbytes, spec);
        REQUIRE(buf.ok());
        CHECK(buf->nbytes == nbytes);
        CHECK(reinterpret_cast<std::uintptr_t>(buf->data) % std::max<std::size_t>(alignment, 64) == 0);
        buf->data[0] = buf->data[nbytes - 1] = std::byte{1};
        bufs.push_back(*buf);
      }
      for (const CpuBuf& buf : bufs) CHECK(cpu.free(buf, nbytes, spec).ok());
    }
  }
  for (std::size_t bad : {std::size_t{3}, std::size_t{48}, std::size_t{1} << 63}) {
    CHECK(cpu.alloc(64, {.alignment = bad}).status().code() == Code::kInvalidArgument);
  }
}

TEST_CASE("large buffers ask for huge pages and begin on one, unless told otherwise") {
  for (bool huge_pages : {true, false}) {
    Allocator<CpuBuf> cpu = CpuAllocator({.huge_pages = huge_pages});
    absl::StatusOr<CpuBuf> buf = cpu.alloc(16 * kMib, {});
    REQUIRE(buf.ok());
    CHECK(AsksForHugePages(buf->data).value_or(huge_pages) == huge_pages);
    CHECK(reinterpret_cast<std::uintptr_t>(buf->data) % (2 * kMib) == 0);
    CHECK(cpu.free(*buf, buf->nbytes, {}).ok());
  }
}

TEST_CASE("small buffers do not take a mapping each, whatever is freed between them") {
  Allocator<CpuBuf> cpu = CpuAllocator();
  for (std::size_t nbytes : {std::size_t{4096}, std::size_t{200} << 10, 2 * kMib - 64}) {
    const std::size_t before = Mappings();
    std::vector<CpuBuf> bufs;
    for (int i = 0; i < 400; ++i) {
      absl::StatusOr<CpuBuf> buf = cpu.alloc(nbytes, {});
      REQUIRE(buf.ok());
      bufs.push_back(*buf);
    }
    for (std::size_t i = 0; i < bufs.size(); i += 2) REQUIRE(cpu.free(bufs[i], nbytes, {}).ok());
    if (!PACKALLOC_WITH_TSAN) CHECK(Mappings() < before + 100);  // its malloc maps as it likes
    for (std::size_t i = 1; i < bufs.size(); i += 2) REQUIRE(cpu.free(bufs[i], nbytes, {}).ok());
  }
}

TEST_CASE("a large buffer's memory goes back at free, with nothing left of its alignment") {
  Allocator<CpuBuf> cpu = CpuAllocator();
  const std::size_t before = Mappings();
  for (int i = 0; i < 200; ++i) {
    const BufferSpec spec{.alignment = i % 2 == 0 ? 0 : 32 * kMib};
    absl::StatusOr<CpuBuf> buf = cpu.alloc(3 * kMib + 5, spec);
    REQUIRE(buf.ok());
    buf->data[0] = std::byte{1};
    REQUIRE(cpu.free(*buf, buf->nbytes, spec).ok());
  }
  CHECK(Mappings() <= before + 3);
}

TEST_CASE("zero means zero, also where memory is used again") {
  Allocator<CpuBuf> cpu = CpuAllocator();
  for (std::size_t nbytes : {std::size_t{1}, std::size_t{1000}, kMib, 4 * kMib}) {
    for (int round = 0; round < 3; ++round) {
      for (std::size_t alignment : {std::size_t{0}, std::size_t{4096}}) {
        const BufferSpec spec{.zero = true, .alignment = alignment};
        absl::StatusOr<CpuBuf> buf = cpu.alloc(nbytes, spec);
        REQUIRE(buf.ok());
        CHECK(std::all_of(buf->data, buf->data + nbytes, [](std::byte b) { return b == std::byte{0}; }));
        std::memset(buf->data, 0xA5, nbytes);
        REQUIRE(cpu.free(*buf, nbytes, spec).ok());
      }
    }
  }
}

TEST_CASE("external memory is wrapped: used in place, never freed, never counted") {
  Allocator<CpuBuf> cpu = CpuAllocator({.max_bytes = 1});
  alignas(64) static std::byte array[4096];
  void* mapped = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  void* heap = std::malloc(4096);
  for (void* memory : {static_cast<void*>(array), mapped, heap, static_cast<void*>(array + 3)}) {
    const BufferSpec spec{.external_ptr = reinterpret_cast<std::uintptr_t>(memory)};
    absl::StatusOr<CpuBuf> buf = cpu.alloc(4000, spec);
    REQUIRE(buf.ok());
    CHECK(static_cast<void*>(buf->data) == memory);
    const std::vector<std::byte> bytes(4000, std::byte{7});
    CHECK(cpu.copyin(*buf, bytes).ok());
    CHECK(cpu.free(*buf, 4000, spec).ok());
    CHECK(std::memcmp(memory, bytes.data(), bytes.size()) == 0);
    CHECK(cpu.memory_info()->free_bytes == 1);
  }
  munmap(mapped, 4096);
  std::free(heap);

  const auto address = reinterpret_cast<std::uintptr_t>(array);
  CHECK(cpu.alloc(8, {.alignment = 64, .external_ptr = address}).ok());
  CHECK(cpu.alloc(8, {.alignment = 64, .external_ptr = address + 8}).status().code() == Code::kInvalidArgument);
  CHECK(cpu.alloc(8, {.zero = true, .external_ptr = address}).status().code() == Code::kInvalidArgument);
  CHECK(cpu.alloc(8, {.external_ptr = 0}).status().code() == Code::kInvalidArgument);
  CHECK(cpu.alloc(64, {.external_ptr = ~std::uintptr_t{0} - 8}).status().code() == Code::kInvalidArgument);
}

TEST_CASE("max_bytes is honoured, named with what was asked for, and rolled back") {
  Allocator<CpuBuf> cpu = CpuAllocator({.max_bytes = 10000});
  absl::StatusOr<CpuBuf> a = cpu.alloc(6000, {});
  REQUIRE(a.ok());
  const absl::Status refused = cpu.alloc(4001, {}).status();
  CHECK(refused.code() == Code::kResourceExhausted);
  CHECK(Mentions(refused, 4001));
  CHECK(Mentions(refused, 6000));
  CHECK(Mentions(refused, 10000));
  CHECK(cpu.memory_info()->total_bytes == 10000);
  CHECK(cpu.memory_info()->free_bytes == 4000);
  absl::StatusOr<CpuBuf> b = cpu.alloc(4000, {});
  REQUIRE(b.ok());
  CHECK(cpu.memory_info()->free_bytes == 0);
  CHECK(cpu.free(*a, 6000, {}).ok());
  CHECK(cpu.free(*b, 4000, {}).ok());
  CHECK(cpu.memory_info()->free_bytes == 10000);

  // What the kernel refuses is not counted.
  constexpr std::size_t kAbsurd = std::numeric_limits<std::ptrdiff_t>::max();
  Allocator<CpuBuf> huge = CpuAllocator({.max_bytes = kAbsurd});
  for (int i = 0; i < 2; ++i) {
    const absl::Status exhausted = huge.alloc(kAbsurd, {}).status();
    CHECK(exhausted.code() == Code::kResourceExhausted);
    CHECK(Mentions(exhausted, kAbsurd));
    CHECK(absl::StrContains(exhausted.message(), "mmap"));
  }
}

TEST_CASE("max_bytes holds over threads: never exceeded, no false refusal at the end, nothing left counted") {
  constexpr std::size_t kLimit = 64 * 1024;
  Allocator<CpuBuf> cpu = CpuAllocator({.max_bytes = kLimit});
  std::atomic<std::size_t> live{0};
  std::atomic<bool> exceeded{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&cpu, &live, &exceeded, t] {
      const std::size_t nbytes = 5000 + 1000 * static_cast<std::size_t>(t);
      for (int round = 0; round < 2000; ++round) {
        std::vector<CpuBuf> held;
        for (int i = 0; i < 4; ++i) {
          absl::StatusOr<CpuBuf> buf = cpu.alloc(nbytes, {});
          if (!buf.ok()) continue;
          if (live.fetch_add(nbytes) + nbytes > kLimit) exceeded = true;
          held.push_back(*buf);
        }
        for (const CpuBuf& buf : held) {
          live.fetch_sub(nbytes);
          if (!cpu.free(buf, nbytes, {}).ok()) exceeded = true;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_FALSE(exceeded);
  CHECK(cpu.memory_info()->free_bytes == kLimit);
}

TEST_CASE("sizes that no memory has are refused, and leave nothing behind") {
  Allocator<CpuBuf> cpu = CpuAllocator();
  constexpr std::size_t kMax = std::numeric_limits<std::size_t>::max();
  for (std::size_t nbytes : {kMax, kMax - 100, kMax - 510, kMax / 2 + 1}) {
    CHECK(cpu.alloc(nbytes, {}).status().code() == Code::kInvalidArgument);
    CHECK(Pack(cpu)->alloc(nbytes).status().code() == Code::kInvalidArgument);
  }
  CHECK(cpu.alloc(kMax / 2, {.alignment = kMaxAlignment}).status().code() == Code::kResourceExhausted);
  absl::StatusOr<CpuBuf> a = cpu.alloc(512, {});
  absl::StatusOr<CpuBuf> b = cpu.alloc(512, {});
  REQUIRE(a.ok());
  REQUIRE(b.ok());
  CHECK(a->data != b->data);
  CHECK(cpu.free(*a, 512, {}).ok());
  CHECK(cpu.free(*b, 512, {}).ok());
}

TEST_CASE("empty buffers: every operation succeeds and touches nothing") {
  Allocator<CpuBuf> cpu = CpuAllocator({.max_bytes = 0});
  absl::StatusOr<CpuBuf> a = cpu.alloc(0, {});
  absl::StatusOr<CpuBuf> b = cpu.alloc(0, {.zero = true, .alignment = 64});
  REQUIRE(a.ok());
  REQUIRE(b.ok());
  CHECK(cpu.copyin(*a, {}).ok());
  CHECK(cpu.copyout({}, *a).ok());
  CHECK(cpu.transfer(*a, *b, 0).ok());
  CHECK(cpu.offset(*a, 0, 0).ok());
  CHECK(cpu.addr(*a) == DeviceAddress{});
  CHECK(*cpu.host_ptr(*a) == nullptr);
  CHECK(cpu.free(*a, 0, {}).ok());
  CHECK(cpu.free(*b, 0, {.zero = true, .alignment = 64}).ok());
  CHECK(cpu.alloc(1, {}).status().code() == Code::kResourceExhausted);
}

TEST_CASE("copies and views stay inside the buffer, also of the record itself") {
  Allocator<CpuBuf> cpu = CpuAllocator();
  constexpr std::size_t kMax = std::numeric_limits<std::size_t>::max();
  std::vector<std::byte> guard(4096 + 64, std::byte{0xEE});
  const BufferSpec spec{.external_ptr = reinterpret_cast<std::uintptr_t>(guard.data() + 32)};
  absl::StatusOr<CpuBuf> buf = cpu.alloc(4096, spec);
  REQUIRE(buf.ok());

  std::vector<std::byte> host(4097);
  CHECK(cpu.copyin(*buf, host).code() == Code::kOutOfRange);
  CHECK(cpu.copyout(absl::MakeSpan(host), *buf).code() == Code::kOutOfRange);
  CHECK(cpu.transfer(*buf, *buf, 4097).code() == Code::kOutOfRange);
  CHECK(std::count(guard.begin(), guard.end(), std::byte{0xEE}) == 4096 + 64);
  CHECK(std::count(host.begin(), host.end(), std::byte{0}) == 4097);

  CHECK(cpu.offset(*buf, 8, 4096).status().code() == Code::kOutOfRange);
  CHECK(cpu.offset(*buf, kMax - 4, 8).status().code() == Code::kOutOfRange);
  CHECK(cpu.offset(*buf, 2, kMax).status().code() == Code::kOutOfRange);
  CHECK(cpu.offset(*buf, 0, 4096).ok());

  absl::StatusOr<CpuBuf> v = cpu.offset(*buf, 1024, 256);
  REQUIRE(v.ok());
  absl::StatusOr<CpuBuf> w = cpu.offset(*v, 64, 128);
  REQUIRE(w.ok());
  CHECK(w->data == buf->data + 384);
  CHECK(cpu.offset(*v, 64, 1016).status().code() == Code::kOutOfRange);
  CHECK(cpu.addr(*w).value == reinterpret_cast<std::uintptr_t>(buf->data + 384));
  CHECK(*cpu.host_ptr(*w) == buf->data + 384);

  const std::vector<std::byte> fill(64, std::byte{0x11});
  CHECK(cpu.copyin(*w, fill).ok());
  CHECK(std::count(guard.begin(), guard.end(), std::byte{0x11}) == 64);
  CHECK(guard[32 + 384] == std::byte{0x11});
  CHECK(guard[32 + 383] == std::byte{0xEE});
  CHECK(guard[32 + 448] == std::byte{0xEE});
  CHECK(cpu.free(*buf, 4095, spec).code() == Code::kInvalidArgument);
  CHECK(cpu.free(*buf, 4096, spec).ok());
}

TEST_CASE("transfer is memmove") {
  Allocator<CpuBuf> cpu = CpuAllocator();
  struct Move {
    std::size_t to, from, nbytes;
  };
  for (const Move move : {Move{16, 0, 128}, Move{0, 16, 128}, Move{0, 0, 256}, Move{100, 100, 50}}) {
    absl::StatusOr<CpuBuf> buf = cpu.alloc(256, {});
    REQUIRE(buf.ok());
    std::vector<std::byte> expected(256);
    for (std::size_t i = 0; i < 256; ++i) buf->data[i] = expected[i] = static_cast<std::byte>(i);
    std::memmove(expected.data() + move.to, expected.data() + move.from, move.nbytes);
    CHECK(cpu.transfer(*cpu.offset(*buf, move.nbytes, move.to), *cpu.offset(*buf, move.nbytes, move.from), move.nbytes)
              .ok());
    CHECK(std::memcmp(buf->data, expected.data(), 256) == 0);
    CHECK(cpu.free(*buf, 256, {}).ok());
  }
}

TEST_CASE("all CPU records are one transfer domain") {
  absl::StatusOr<PackedAllocator> a = Pack(CpuAllocator());
  absl::StatusOr<PackedAllocator> b = Pack(CpuAllocator({.max_bytes = 100}));
  REQUIRE(a.ok());
  REQUIRE(b.ok());
  CHECK(a->same_transfer_domain(*b));
  CHECK(a->traits().memory_domain == b->traits().memory_domain);
  absl::StatusOr<AnyBuf> x = a->alloc(4);
  absl::StatusOr<AnyBuf> y = b->alloc(4);
  const std::vector<std::byte> four{std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}};
  CHECK(a->copyin(*x, four).ok());
  CHECK(a->transfer(*y, *x, 4).ok());
  std::vector<std::byte> back(4);
  CHECK(b->copyout(absl::MakeSpan(back), *y).ok());
  CHECK(back == four);
  CHECK(a->free(*x, 4).ok());
  CHECK(b->free(*y, 4).ok());
}

TEST_CASE("a refused mapping is RESOURCE_EXHAUSTED and leaves the record usable; a forked child can allocate") {
  const auto child_does = [](auto work) {
    const pid_t child = fork();
    if (child == 0) _exit(work() ? 0 : 1);
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  };
  Allocator<CpuBuf> cpu = CpuAllocator();
  absl::StatusOr<CpuBuf> inherited = cpu.alloc(4 * kMib, {});
  REQUIRE(inherited.ok());
  CHECK(child_does([&] {
    for (std::size_t nbytes : {std::size_t{100}, 8 * kMib}) {
      absl::StatusOr<CpuBuf> buf = cpu.alloc(nbytes, {});
      if (!buf.ok()) return false;
      std::memset(buf->data, 1, nbytes);
      if (!cpu.free(*buf, nbytes, {}).ok()) return false;
    }
    return cpu.free(*inherited, 4 * kMib, {}).ok();
  }));
#if !PACKALLOC_WITH_ASAN && !PACKALLOC_WITH_TSAN  // whose shadow memory is beyond the limit
  CHECK(child_does([&] {
    const rlimit limit{512 * kMib, 512 * kMib};
    setrlimit(RLIMIT_AS, &limit);
    const absl::Status refused = cpu.alloc(1024 * kMib, {}).status();
    if (refused.code() != Code::kResourceExhausted || !Mentions(refused, 1024 * kMib)) return false;
    absl::StatusOr<CpuBuf> small = cpu.alloc(kMib, {});
    return small.ok() && cpu.free(*small, kMib, {}).ok();
  }));
#endif
  CHECK(cpu.free(*inherited, 4 * kMib, {}).ok());
}

TEST_CASE("memory_info: the machine's, or less where a control group limits it") {
  const MemoryInfo real = *CpuAllocator().memory_info();
  CHECK(real.total_bytes > 0);
  CHECK(real.free_bytes > 0);
  CHECK(real.free_bytes <= real.total_bytes);

  const std::filesystem::path root =
      std::filesystem::temp_directory_path() / ("packalloc_cpu_test_" + std::to_string(getpid()));
  const auto write = [&root](const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root / path).parent_path());
    std::ofstream(root / path) << text;
  };
  CHECK(SystemMemory(root.string()).status().code() == absl::StatusCode::kUnavailable);  // no /proc
  const auto info = [&root] { return SystemMemory(root.string()).value(); };
  write("proc/meminfo", "MemTotal:       1000 kB\nMemFree:  1 kB\nMemAvailable:    600 kB\n");
  CHECK(info().total_bytes == 1000 * 1024);
  CHECK(info().free_bytes == 600 * 1024);

  write("proc/self/cgroup", "0::/a/b\n");
  write("sys/fs/cgroup/a/memory.max", "500000\n");
  write("sys/fs/cgroup/a/memory.current", "300000\n");
  write("sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 100000\n");
  write("sys/fs/cgroup/a/b/memory.max", "max\n");
  CHECK(info().total_bytes == 500000);
  CHECK(info().free_bytes == 300000);
  write("sys/fs/cgroup/memory.max", "400000\n");  // the root of the mount, as a container sees its own limit
  write("sys/fs/cgroup/memory.current", "450000\n");
  CHECK(info().total_bytes == 400000);
  CHECK(info().free_bytes == 0);

  write("proc/self/cgroup", "4:cpu:/x\n3:memory:/y\n");
  write("sys/fs/cgroup/memory/y/memory.limit_in_bytes", "200000\n");
  write("sys/fs/cgroup/memory/y/memory.usage_in_bytes", "50000\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");  // version 1's "no limit"
  CHECK(info().total_bytes == 200000);
  CHECK(info().free_bytes == 150000);
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace packalloc
