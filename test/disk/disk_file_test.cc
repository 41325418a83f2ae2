#include "packalloc/disk_file.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "lib/disk/stream.h"
#include "test/disk/faulty_disk.h"
#include "test/sanitizers.h"
#include "test/smaps.h"
#include "test/temp_dir.h"

namespace packalloc {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

// Each way to read, forced.
struct Way {
  const char* name;
  std::function<void(FaultyDisk&)> set;
};
const Way kWays[] = {
    {"page cache", [](FaultyDisk& d) { d.cached_part = 1.0; }},
    {"io_uring", [](FaultyDisk& d) { d.cached_part = 0.0; }},
    {"direct pread", [](FaultyDisk& d) { d.cached_part = 0.0, d.uring_init_error = -EPERM; }},
    {"direct refused at open", [](FaultyDisk& d) { d.cached_part = 0.0, d.direct_open_error = EINVAL; }},
    {"direct unknown", [](FaultyDisk& d) { d.cached_part = 0.0, d.direct_alignment = 0; }},
    {"direct refused at first read",
     [](FaultyDisk& d) {
       d.cached_part = 0.0, d.direct_read_error = EINVAL;
       d.uring_result = [](int, std::uint64_t, std::size_t) { return -EINVAL; };
     }},
    {"short results from the ring",
     [](FaultyDisk& d) {
       d.cached_part = 0.0;
       d.uring_result = [](int result, std::uint64_t, std::size_t) { return result > 70000 ? 70000 : result; };
     }},
    {"short direct preads",
     [](FaultyDisk& d) { d.cached_part = 0.0, d.uring_init_error = -ENOSYS, d.most_per_pread = 70000; }},
    {"interrupted ring",
     [](FaultyDisk& d) {
       d.cached_part = 0.0;
       d.uring_result = [](int, std::uint64_t, std::size_t) { return -EINTR; };
     }},
};

std::shared_ptr<DiskFile> OpenFile(const std::string& path, std::shared_ptr<DiskSystemCalls> system = nullptr,
                                   std::size_t staging = 64 * kMiB) {
  absl::StatusOr<std::shared_ptr<DiskFile>> file =
      DiskFile::Open(path, {.staging_bytes = staging, .system = std::move(system)});
  REQUIRE_MESSAGE(file.ok(), file.status().ToString());
  return *std::move(file);
}

// Reads into memory with guards on either side, `shift` bytes off page alignment, and compares.
void ReadAndCompare(DiskFile& file, const std::string& want, std::uint64_t offset, std::size_t nbytes,
                    std::size_t shift) {
  constexpr std::size_t kGuard = 8192;
  std::vector<std::byte> memory(nbytes + 3 * kGuard, std::byte{0xEE});
  std::byte* base = memory.data() + kGuard;
  base += (4096 - reinterpret_cast<std::uintptr_t>(base) % 4096) % 4096 + shift;
  const absl::Status read = file.Read(offset, {base, nbytes});
  REQUIRE_MESSAGE(read.ok(), read.ToString());
  CHECK(std::memcmp(base, want.data() + offset, nbytes) == 0);
  for (const std::byte* p = memory.data(); p < base; ++p) REQUIRE(*p == std::byte{0xEE});
  for (const std::byte* p = base + nbytes; p < memory.data() + memory.size(); ++p) REQUIRE(*p == std::byte{0xEE});
}

TEST_CASE("every way of reading gives the same bytes and writes nothing beside them") {
  const TempDir dir;
  const std::string bytes = TextPattern(5 * kMiB + 1808);
  const std::string path = dir.Write("f", bytes);
  for (const Way& way : kWays) {
    for (const std::size_t staging : {64 * kMiB, std::size_t{8192}, std::size_t{1}}) {
      CAPTURE(way.name);
      CAPTURE(staging);
      auto system = std::make_shared<FaultyDisk>();
      way.set(*system);
      const std::shared_ptr<DiskFile> file = OpenFile(path, system, staging);
      for (const std::size_t shift : {0, 1, 512}) {
        ReadAndCompare(*file, bytes, 0, bytes.size(), shift);
        ReadAndCompare(*file, bytes, 1, 3 * kMiB, shift);
        ReadAndCompare(*file, bytes, 4095, 300000, shift);
        ReadAndCompare(*file, bytes, bytes.size() - 1808, 1808, shift);
        ReadAndCompare(*file, bytes, 4096 * 3, 4096, shift);
      }
      ReadAndCompare(*file, bytes, bytes.size(), 0, 0);
    }
  }
}

TEST_CASE("a file smaller than a page is read by every way at every place") {
  const TempDir dir;
  const std::string bytes = TextPattern(10000);
  const std::string path = dir.Write("f", bytes);
  for (const Way& way : kWays) {
    CAPTURE(way.name);
    auto system = std::make_shared<FaultyDisk>();
    way.set(*system);
    const std::shared_ptr<DiskFile> file = OpenFile(path, system);
    const std::pair<std::size_t, std::size_t> ranges[] = {{1, 100}, {4095, 2}, {8192, 1808}, {0, 10000}, {9999, 1}};
    for (const auto& [offset, nbytes] : ranges) ReadAndCompare(*file, bytes, offset, nbytes, 1);
  }
}

TEST_CASE("statistics tell the way taken and why not a faster one") {
  const TempDir dir;
  const std::string path = dir.Write("f", TextPattern(8 * kMiB));
  std::vector<std::byte> to(8 * kMiB);
  const auto stats = [&](const std::function<void(FaultyDisk&)>& set) {
    auto system = std::make_shared<FaultyDisk>();
    set(*system);
    const std::shared_ptr<DiskFile> file = OpenFile(path, system);
    REQUIRE(file->Read(0, absl::MakeSpan(to)).ok());
    return file->stats();
  };
  CHECK(stats(kWays[0].set).page_cache_bytes == 8 * kMiB);
  const DiskReadStats refused = stats(kWays[3].set);
  CHECK(refused.buffered_bytes == 8 * kMiB);
  CHECK(absl::StrContains(refused.direct_refused, "open"));
  CHECK(absl::StrContains(stats(kWays[5].set).direct_refused, "read"));
  const DiskReadStats no_ring = stats(kWays[2].set);
  CHECK(!no_ring.io_uring_refused.empty());
  CHECK(no_ring.io_uring_bytes == 0);
  const DiskReadStats ring = stats(kWays[1].set);
  CHECK(ring.io_uring_bytes + ring.direct_bytes + ring.buffered_bytes == 8 * kMiB);
}

TEST_CASE("short reads and interruptions are the library's business") {
  const TempDir dir;
  const std::string bytes = TextPattern(10000);
  const std::string path = dir.Write("f", bytes);
  auto system = std::make_shared<FaultyDisk>();
  system->most_per_pread = 1000;
  system->interruptions = 3;
  ReadAndCompare(*OpenFile(path, system), bytes, 0, 10000, 0);
}

#if !PACKALLOC_WITH_TSAN  // its shadow of 2 GiB would be another 8
TEST_CASE("one pread is never asked for more than the kernel moves") {
  const TempDir dir;
  const std::string path = dir / "sparse";
  constexpr std::uint64_t kSize = (std::uint64_t{1} << 31) + 8192;
  const std::uint64_t marks[] = {0x7fffefff, 0x7ffff000, kSize - 1};
  const int fd = open(path.c_str(), O_CREAT | O_WRONLY, 0644);
  REQUIRE(fd >= 0);
  REQUIRE(ftruncate(fd, static_cast<off_t>(kSize)) == 0);
  for (const std::uint64_t mark : marks) REQUIRE(pwrite(fd, "x", 1, static_cast<off_t>(mark)) == 1);
  close(fd);
  std::shared_ptr<DiskFile> file = OpenFile(path);
  std::unique_ptr<std::byte, decltype(&std::free)> memory(static_cast<std::byte*>(std::malloc(kSize)), &std::free);
  REQUIRE(memory != nullptr);
  REQUIRE(file->Read(0, {memory.get(), kSize}).ok());
  for (const std::uint64_t mark : marks) CHECK(memory.get()[mark] == std::byte{'x'});
  CHECK(memory.get()[0x7ffff001] == std::byte{0});
}

#endif

TEST_CASE("places beyond 4 GiB of a sparse file") {
  const TempDir dir;
  const std::string path = dir / "sparse";
  constexpr std::uint64_t kAt = (std::uint64_t{1} << 32) + 12345;
  const int fd = open(path.c_str(), O_CREAT | O_WRONLY, 0644);
  REQUIRE(pwrite(fd, "mark", 4, kAt) == 4);
  close(fd);
  std::shared_ptr<DiskFile> file = OpenFile(path);
  std::vector<std::byte> to(1 * kMiB);
  REQUIRE(file->Read(kAt + 4 - to.size(), absl::MakeSpan(to)).ok());
  CHECK(std::memcmp(to.data() + to.size() - 4, "mark", 4) == 0);
  CHECK(to[0] == std::byte{0});
}

TEST_CASE("an I/O error names file, place and count") {
  const TempDir dir;
  const std::string path = dir.Write("f", TextPattern(10000));
  auto system = std::make_shared<FaultyDisk>();
  system->fails_at = 5000;
  std::vector<std::byte> to(10000);
  const absl::Status read = OpenFile(path, system)->Read(0, absl::MakeSpan(to));
  CHECK(read.code() == absl::StatusCode::kDataLoss);
  CHECK(absl::StrContains(read.message(), path));
  CHECK(absl::StrContains(read.message(), "5000 of 10000"));

  auto ring = std::make_shared<FaultyDisk>();
  ring->cached_part = 0.0;
  ring->uring_result = [](int, std::uint64_t, std::size_t) { return -EIO; };
  std::string big = dir.Write("g", TextPattern(8 * kMiB));
  to.resize(8 * kMiB);
  const absl::Status failed = OpenFile(big, ring)->Read(0, absl::MakeSpan(to));
  CHECK((failed.code() == absl::StatusCode::kDataLoss || failed.ok()));  // OK only where there is no ring
}

TEST_CASE("ranges outside the file are errors with both numbers, also those that wrap") {
  const TempDir dir;
  std::shared_ptr<DiskFile> file = OpenFile(dir.Write("f", TextPattern(10000)));
  std::vector<std::byte> to(4096);
  const auto read = [&](std::uint64_t offset, std::size_t nbytes) {
    return file->Read(offset, absl::MakeSpan(to).subspan(0, nbytes));
  };
  CHECK(read(8192, 4096).code() == absl::StatusCode::kOutOfRange);
  CHECK(absl::StrContains(read(8192, 4096).message(), "10000"));
  CHECK(absl::StrContains(read(8192, 4096).message(), "4096"));
  CHECK(read(10000, 1).code() == absl::StatusCode::kOutOfRange);
  CHECK(read(10000, 0).ok());
  CHECK(read(10001, 0).code() == absl::StatusCode::kOutOfRange);
  CHECK(read(SIZE_MAX - 10, 100).code() == absl::StatusCode::kOutOfRange);
  CHECK(read(std::uint64_t{1} << 63, 1).code() == absl::StatusCode::kOutOfRange);
}

TEST_CASE("a file that shrinks while it is read is an error, not a signal and not zeros") {
  const TempDir dir;
  for (const Way& way : kWays) {
    CAPTURE(way.name);
    const std::string path = dir.Write("f", TextPattern(9 * kMiB));
    auto system = std::make_shared<FaultyDisk>();
    way.set(*system);
    std::atomic<bool> cut{false};
    const auto truncate_once = [&] {
      if (!cut.exchange(true)) CHECK(truncate(path.c_str(), 4096) == 0);
    };
    system->before_pread = [&](std::uint64_t) { truncate_once(); };
    if (!system->uring_result) {
      system->uring_result = [&](int result, std::uint64_t, std::size_t) {
        truncate_once();
        return result;
      };
    }
    std::shared_ptr<DiskFile> file = OpenFile(path, system);
    std::vector<std::byte> to(9 * kMiB);
    const absl::Status read = file->Read(0, absl::MakeSpan(to));
    // The ring may have had everything before the first result was looked at.
    CHECK((read.code() == absl::StatusCode::kOutOfRange || way.set == nullptr || std::string(way.name) == "io_uring"));
    CHECK(file->Read(0, absl::MakeSpan(to)).code() == absl::StatusCode::kOutOfRange);
    CHECK(file->Read(0, absl::MakeSpan(to).subspan(0, 4096)).ok());
  }
}

TEST_CASE("an open file is the same file when its path is unlinked or replaced") {
  const TempDir dir;
  const std::string old_bytes = TextPattern(2 * kMiB, 1);
  const std::string path = dir.Write("f", old_bytes);
  std::shared_ptr<DiskFile> file = OpenFile(path);
  std::filesystem::rename(dir.Write("g", TextPattern(2 * kMiB, 2)), path);
  ReadAndCompare(*file, old_bytes, 0, old_bytes.size(), 0);
  std::filesystem::remove(path);
  ReadAndCompare(*file, old_bytes, 12345, 1 * kMiB, 1);
}

TEST_CASE("what is not a regular file is refused with what it is") {
  const TempDir dir;
  const auto refuse = [](const std::string& path, absl::StatusCode code, const char* what) {
    CAPTURE(path);
    absl::StatusOr<std::shared_ptr<DiskFile>> file = DiskFile::Open(path);
    CHECK(file.status().code() == code);
    CHECK_MESSAGE(absl::StrContains(file.status().message(), what), file.status().ToString());
  };
  refuse(dir.path(), absl::StatusCode::kInvalidArgument, "directory");
  REQUIRE(mkfifo((dir / "pipe").c_str(), 0644) == 0);
  refuse(dir / "pipe", absl::StatusCode::kInvalidArgument, "pipe");
  refuse("/dev/null", absl::StatusCode::kInvalidArgument, "character device");
  refuse(dir / "missing", absl::StatusCode::kNotFound, "missing");
  refuse("", absl::StatusCode::kInvalidArgument, "empty");
  refuse(std::string("a\0b", 3), absl::StatusCode::kInvalidArgument, "NUL");
  CHECK(!std::filesystem::exists(dir / "missing"));
  CHECK(DiskFile::Open(dir.path(), {.write = true}).status().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("an empty file has nothing to read") {
  const TempDir dir;
  std::shared_ptr<DiskFile> file = OpenFile(dir.Write("f", ""));
  CHECK(*file->size() == 0);
  CHECK(file->Read(0, {}).ok());
  std::byte one{};
  CHECK(file->Read(0, {&one, 1}).code() == absl::StatusCode::kOutOfRange);
}

TEST_CASE("writing needs to be asked for, stays inside the file, and comes short safely") {
  const TempDir dir;
  const std::string path = dir.Write("f", TextPattern(10000));
  const std::vector<std::byte> ones(5000, std::byte{1});
  CHECK(OpenFile(path)->Write(0, ones).code() == absl::StatusCode::kFailedPrecondition);
  CHECK(OpenFile(path)->GrowTo(1).code() == absl::StatusCode::kFailedPrecondition);
  auto system = std::make_shared<FaultyDisk>();
  system->most_per_pread = 999;
  absl::StatusOr<std::shared_ptr<DiskFile>> file = DiskFile::Open(path, {.write = true, .system = system});
  REQUIRE(file.ok());
  CHECK((*file)->Write(4000, ones).ok());
  CHECK((*file)->Write(5001, ones).code() == absl::StatusCode::kOutOfRange);
  CHECK(*(*file)->size() == 10000);
  std::vector<std::byte> back(5000);
  CHECK((*file)->Read(4000, absl::MakeSpan(back)).ok());
  CHECK(back == ones);
  CHECK((*file)->GrowTo(20000).ok());
  CHECK(*(*file)->size() == 20000);
  CHECK((*file)->GrowTo(100).ok());
  CHECK(*(*file)->size() == 20000);

  absl::StatusOr<std::shared_ptr<DiskFile>> full = DiskFile::Open("/dev/full", {.write = true});
  CHECK(full.status().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("each system call fails once at each place: an error, and then it works") {
  const TempDir dir;
  const std::string bytes = TextPattern(6 * kMiB + 77);
  const std::string path = dir.Write("f", bytes);
  for (const Way& way : kWays) {
    CAPTURE(way.name);
    int swept = 0;
    for (int n = 1;; ++n) {
      auto system = std::make_shared<FaultyDisk>();
      way.set(*system);
      system->fail_call = n;
      absl::StatusOr<std::shared_ptr<DiskFile>> file = DiskFile::Open(path, {.system = system});
      if (file.ok()) {
        std::vector<std::byte> to(bytes.size() - 1);
        const absl::Status read = (*file)->Read(1, absl::MakeSpan(to));
        CHECK((!read.ok() || std::memcmp(to.data(), bytes.data() + 1, to.size()) == 0));
        if (system->calls < n) break;
        REQUIRE((*file)->Read(1, absl::MakeSpan(to)).ok());
        CHECK(std::memcmp(to.data(), bytes.data() + 1, to.size()) == 0);
      }
      REQUIRE(system->calls >= n);
      swept = n;
      REQUIRE(n < 1000);
    }
    CHECK(swept >= 3);
  }
}

TEST_CASE("streaming delivers every byte of many targets once, within the staging budget") {
  const TempDir dir;
  const std::string bytes = TextPattern(12 * kMiB + 5);
  const std::string path = dir.Write("f", bytes);
  const unsigned seed = std::random_device()();
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (const Way& way : kWays) {
    CAPTURE(way.name);
    for (const std::size_t budget : {std::size_t{64} << 20, std::size_t{1} << 20, std::size_t{10000}}) {
      auto system = std::make_shared<FaultyDisk>();
      way.set(*system);
      std::shared_ptr<DiskFile> file = OpenFile(path, system);
      std::vector<StreamTarget> targets;
      std::vector<std::string> got;
      for (std::size_t offset = 0; offset < bytes.size();) {
        const std::size_t nbytes = std::min<std::size_t>(bytes.size() - offset, random() % (600 << 10));
        targets.push_back({file.get(), offset, nbytes, nullptr});
        got.emplace_back(nbytes, '\0');
        offset += nbytes + random() % 3 * (random() % 200000);
      }
      for (std::size_t i = 0; i < targets.size(); i += 2) {
        targets[i].host = reinterpret_cast<std::byte*>(got[i].data());
      }
      std::vector<int> busy(64, 0);
      std::size_t staged = 0;
      std::size_t peak = 0;
      std::uint64_t last = 0;
      StreamOptions options{.staging_bytes = budget};
      std::vector<std::unique_ptr<std::byte, decltype(&std::free)>> slots;
      options.slot_memory = [&](std::size_t slot, std::size_t nbytes) -> absl::StatusOr<std::byte*> {
        CHECK(slot == slots.size());
        staged += nbytes;
        peak = std::max(peak, staged);
        slots.emplace_back(static_cast<std::byte*>(std::aligned_alloc(4096, nbytes)), &std::free);
        return slots.back().get();
      };
      options.deliver = [&](std::size_t target, std::size_t at, absl::Span<const std::byte> part, std::size_t slot) {
        std::memcpy(got[target].data() + at, part.data(), part.size());
        busy[slot] = 1;
        return absl::OkStatus();
      };
      options.slot_free = [&](std::size_t slot) {
        busy[slot] = 0;
        return absl::OkStatus();
      };
      options.progress = [&](std::uint64_t done) {
        CHECK(done > last);
        CHECK(done - last <= 64 * kMiB);
        last = done;
        return true;
      };
      const absl::Status streamed = StreamFromDisk(targets, options);
      REQUIRE_MESSAGE(streamed.ok(), streamed.ToString());
      std::uint64_t total = 0;
      for (std::size_t i = 0; i < targets.size(); ++i) {
        total += targets[i].nbytes;
        REQUIRE(got[i] == bytes.substr(targets[i].offset, targets[i].nbytes));
      }
      CHECK(last == total);
      CHECK(peak <= std::max<std::size_t>(budget, 8192));
      for (const int one : busy) CHECK(one == 0);
    }
  }
}

// Pages of address space that this process has.
std::size_t MappedPages() {
  std::ifstream statm("/proc/self/statm");
  std::size_t pages = 0;
  statm >> pages;
  return pages;
}

TEST_CASE("large staging slots lie in huge pages and are given back, also after an error") {
  const TempDir dir;
  const std::string path = dir.Write("f", TextPattern(24 * kMiB));
  auto system = std::make_shared<FaultyDisk>();
  system->cached_part = 0.0;
  std::shared_ptr<DiskFile> file = OpenFile(path, system);
  const StreamTarget target{file.get(), 0, 24 * kMiB, nullptr};
  for (const std::size_t staging : {std::size_t{64} << 20, std::size_t{4} << 20}) {
    StreamOptions options{.staging_bytes = staging};
    options.deliver = [](std::size_t, std::size_t at, absl::Span<const std::byte> bytes, std::size_t) {
      CHECK(reinterpret_cast<std::uintptr_t>(bytes.data()) % (2 * kMiB) == 0);
      CHECK(AsksForHugePages(bytes.data()).value_or(true));
      return at < 16 * kMiB ? absl::OkStatus() : absl::AbortedError("enough");
    };
    const std::size_t before = MappedPages();
    for (int i = 0; i < 10; ++i) {
      CHECK(StreamFromDisk(absl::MakeConstSpan(&target, 1), options).code() == absl::StatusCode::kAborted);
    }
    CHECK(MappedPages() < before + (100 * kMiB) / 4096);  // of 64 MiB each stream used up to 24
  }
}

TEST_CASE("no memory for staging is one error; with some of it, and the next time, all is read") {
  const TempDir dir;
  const std::string bytes = TextPattern(3 * kMiB + 1);
  const std::string path = dir.Write("f", bytes);
  for (const Way& way : kWays) {
    CAPTURE(way.name);
    auto system = std::make_shared<FaultyDisk>();
    way.set(*system);
    std::shared_ptr<DiskFile> file = OpenFile(path, system);
    for (const std::size_t slots : {0, 1}) {
      std::string got(bytes.size(), '\0');
      std::vector<std::unique_ptr<std::byte, decltype(&std::free)>> memory;
      StreamOptions options{.staging_bytes = 256 << 10};
      std::size_t most = slots;
      options.slot_memory = [&](std::size_t, std::size_t nbytes) -> absl::StatusOr<std::byte*> {
        if (memory.size() == most) return absl::ResourceExhaustedError("no memory");
        memory.emplace_back(static_cast<std::byte*>(std::aligned_alloc(4096, nbytes)), &std::free);
        return memory.back().get();
      };
      options.deliver = [&](std::size_t, std::size_t at, absl::Span<const std::byte> part, std::size_t) {
        std::memcpy(got.data() + at, part.data(), part.size());
        return absl::OkStatus();
      };
      const auto read = [&](std::uint64_t offset, std::size_t nbytes) {
        const StreamTarget target{file.get(), offset, nbytes, nullptr};
        return StreamFromDisk(absl::MakeConstSpan(&target, 1), options);
      };
      if (slots == 0) {
        CHECK(read(0, bytes.size()).code() == absl::StatusCode::kResourceExhausted);
        most = 1;
        CHECK(read(4095, 100).ok());
        CHECK(got.substr(0, 100) == bytes.substr(4095, 100));
        continue;
      }
      const absl::Status whole = read(0, bytes.size());
      CHECK_MESSAGE(whole.ok(), whole.ToString());
      CHECK((got == bytes));
    }
  }
}

TEST_CASE("an error or an exception of a delivery, and a cancellation, leave nothing in flight") {
  const TempDir dir;
  const std::string bytes = TextPattern(40 * kMiB);
  const std::string path = dir.Write("f", bytes);
  for (const Way& way : kWays) {
    CAPTURE(way.name);
    auto system = std::make_shared<FaultyDisk>();
    way.set(*system);
    std::shared_ptr<DiskFile> file = OpenFile(path, system);
    const StreamTarget target{file.get(), 1, bytes.size() - 1, nullptr};
    int pending = 0;
    int deliveries = 0;
    StreamOptions options;
    options.slot_free = [&](std::size_t) {
      --pending;
      return absl::OkStatus();
    };
    const auto run = [&](const std::function<absl::Status()>& what) {
      pending = deliveries = 0;
      options.deliver = [&](std::size_t, std::size_t, absl::Span<const std::byte>, std::size_t) {
        ++pending;
        return ++deliveries == 3 ? what() : absl::OkStatus();
      };
      return StreamFromDisk(absl::MakeConstSpan(&target, 1), options);
    };
    CHECK(run([] { return absl::AbortedError("no"); }).code() == absl::StatusCode::kAborted);
    CHECK(pending == 0);
    CHECK_THROWS_AS(run([]() -> absl::Status { throw 42; }).IgnoreError(), int);
    CHECK(pending == 0);
    options.progress = [](std::uint64_t done) { return done < 10 * kMiB; };
    CHECK(run([] { return absl::OkStatus(); }).code() == absl::StatusCode::kCancelled);
    CHECK(pending == 0);
    options.progress = nullptr;
  }
}

}  // namespace
}  // namespace packalloc
