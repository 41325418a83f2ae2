#include "packalloc/copy.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "packalloc/backends/cpu.h"
#include "packalloc/backends/disk.h"
#include "packalloc/backends/mock.h"
#include "packalloc/buffer.h"
#include "test/temp_dir.h"

namespace packalloc {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

template <typename T>
T Ok(absl::StatusOr<T> value) {
  REQUIRE_MESSAGE(value.ok(), value.status().ToString());
  return *std::move(value);
}

PackedAllocator Cpu() { return Ok(Pack(CpuAllocator())); }

// A device whose memory the CPU cannot touch.
struct Device {
  std::shared_ptr<MockControl> control;
  PackedAllocator allocator;
};
Device MakeDevice(MockOptions options = {}) {
  options.host_accessible = false;
  options.log_calls = true;
  Allocator<MockBuf> record = MockAllocator(options);
  return {Find<MockControl>(record), Ok(Pack(record))};
}

absl::Span<const std::byte> Bytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

BufferRef Filled(const PackedAllocator& allocator, const std::string& bytes) {
  const BufferRef ref{allocator, Ok(allocator.alloc(bytes.size()))};
  REQUIRE(allocator.copyin(ref.buffer, Bytes(bytes)).ok());
  return ref;
}

std::string Content(const BufferRef& ref) {
  std::string bytes(ref.buffer.nbytes(), '\0');
  REQUIRE(ref.allocator.copyout({reinterpret_cast<std::byte*>(bytes.data()), bytes.size()}, ref.buffer).ok());
  return bytes;
}

void Free(const BufferRef& ref) { REQUIRE(ref.allocator.free(ref.buffer, ref.buffer.nbytes()).ok()); }

TEST_CASE("every pair of backends: the bytes are equal and the path is the one expected") {
  const TempDir dir;
  const Device mock = MakeDevice();
  const Device other = MakeDevice({.lazy = true});
  const PackedAllocator cpu = Cpu();
  for (const std::size_t nbytes : {std::size_t{1000}, 9 * kMiB + 3}) {
    CAPTURE(nbytes);
    const std::string bytes = TextPattern(nbytes);
    dir.Write("a", bytes);
    dir.Write("b", std::string(nbytes, 'x'));
    const PackedAllocator disk_a = Ok(Pack(Ok(DiskAllocator(dir / "a", {.write = true}))));
    const PackedAllocator disk_b = Ok(Pack(Ok(DiskAllocator(dir / "b", {.write = true}))));
    const PackedAllocator others[] = {cpu, mock.allocator, other.allocator, disk_b};
    const auto expected = [&](const PackedAllocator& to, const PackedAllocator& from) {
      if (to == from) return CopyPath::kTransfer;
      if (to == cpu && from == disk_a) return CopyPath::kFromDisk;
      if (from == cpu) return CopyPath::kCopyIn;
      if (to == cpu) return CopyPath::kCopyOut;
      return CopyPath::kStaged;
    };
    for (const PackedAllocator& from : {cpu, mock.allocator, other.allocator, disk_a}) {
      for (const PackedAllocator& to : others) {
        CAPTURE(from.name());
        CAPTURE(to.name());
        const BufferRef src = Filled(from, bytes);
        const BufferRef dest = Filled(to, std::string(nbytes, 'x'));
        const absl::StatusOr<CopyReport> report = Copy(dest, src);
        REQUIRE_MESSAGE(report.ok(), report.status().ToString());
        CHECK(std::string(ToString(report->path)) == ToString(expected(to, from)));
        CHECK(report->bytes == nbytes);
        CHECK((Content(dest) == bytes));
        CHECK(report->peak_staging_bytes <= CopyOptions().staging_bytes);
        Free(src);
        Free(dest);
      }
    }
  }
  CHECK(mock.control->live_blocks() == 0);
  CHECK(other.control->live_blocks() == 0);
}

TEST_CASE("sizes that differ, foreign and empty handles: an error, and nothing is written") {
  const Device mock = MakeDevice();
  const PackedAllocator cpu = Cpu();
  const BufferRef src = Filled(cpu, std::string(1000, 'a'));
  const BufferRef dest = Filled(mock.allocator, std::string(999, 'b'));
  const absl::Status copied = Copy(dest, src).status();
  CHECK(copied.code() == absl::StatusCode::kInvalidArgument);
  CHECK(absl::StrContains(copied.message(), "1000"));
  CHECK(absl::StrContains(copied.message(), "999"));
  CHECK((Content(dest) == std::string(999, 'b')));
  const BufferRef good = Filled(mock.allocator, std::string(1000, 'c'));
  const CopyPair pairs[] = {{good, src}, {dest, src}};
  CHECK(CopyAll(pairs).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK((Content(good) == std::string(1000, 'c')));
  CHECK(Copy({cpu, good.buffer}, src).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(Copy({cpu, AnyBuf()}, src).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(Copy({PackedAllocator(), src.buffer}, src).status().code() == absl::StatusCode::kFailedPrecondition);
  for (const BufferRef& ref : {src, dest, good}) Free(ref);
}

TEST_CASE("zero bytes are copied without a call") {
  const Device a = MakeDevice();
  const Device b = MakeDevice();
  const BufferRef src{a.allocator, Ok(a.allocator.alloc(0))};
  const BufferRef dest{b.allocator, Ok(b.allocator.alloc(0))};
  CHECK(Ok(Copy(dest, src)).path == CopyPath::kNothing);
  CHECK(a.control->log().entries().empty());
  CHECK(b.control->log().entries().empty());
  bool told = false;
  CopyAllOptions options;
  options.progress = [&](std::uint64_t done, std::uint64_t total) {
    told = done == 0 && total == 0;
    return true;
  };
  const CopyPair pair{dest, src};
  CHECK(CopyAll({&pair, 1}, options).ok());
  CHECK(told);
}

TEST_CASE("overlap behaves as memmove, within a device and within a file") {
  const TempDir dir;
  const std::string bytes = TextPattern(6 * kMiB + 9);
  dir.Write("f", bytes);
  const Device mock = MakeDevice();
  const PackedAllocator writable = Ok(Pack(Ok(DiskAllocator(dir / "f", {.write = true}))));
  const PackedAllocator again = Ok(Pack(Ok(DiskAllocator(dir / "f", {.write = true}))));
  for (const auto& sides : {std::pair{mock.allocator, mock.allocator}, std::pair{Cpu(), PackedAllocator()},
                            std::pair{writable, writable}, std::pair{writable, again}}) {
    const PackedAllocator& to = sides.first;
    const PackedAllocator& from = sides.second;
    for (const auto& places : {std::pair<std::size_t, std::size_t>{16, 0}, {0, 16}, {0, 0}, {kMiB, 5}}) {
      const std::size_t dest_at = places.first;
      const std::size_t src_at = places.second;
      CAPTURE(to.name());
      CAPTURE(dest_at);
      const BufferRef base = Filled(to, bytes);
      const BufferRef other = from && from != to ? BufferRef{from, Ok(from.alloc(bytes.size()))} : base;
      const std::size_t nbytes = bytes.size() - kMiB;
      const BufferRef dest{to, Ok(to.offset(base.buffer, nbytes, dest_at))};
      const BufferRef src{other.allocator, Ok(other.allocator.offset(other.buffer, nbytes, src_at))};
      REQUIRE(Copy(dest, src, {.staging_bytes = 64 << 10}).ok());
      std::string want = bytes;
      std::memmove(want.data() + dest_at, want.data() + src_at, nbytes);
      CHECK((Content(base) == want));
      Free(base);
    }
  }
}

TEST_CASE("a staged copy keeps to its staging bytes and leaves nothing behind where a side fails or throws") {
  const Device from = MakeDevice();
  const Device to = MakeDevice();
  const std::string bytes = TextPattern(8 * kMiB);
  const BufferRef src = Filled(from.allocator, bytes);
  const BufferRef dest = Filled(to.allocator, std::string(bytes.size(), 'x'));
  const CopyOptions options{.staging_bytes = kMiB};
  CHECK(Ok(Copy(dest, src, options)).peak_staging_bytes == kMiB);
  CHECK((Content(dest) == bytes));

  to.control->FailNth(Member::kCopyin, 17, absl::DataLossError("link down"));
  CHECK(Copy(dest, src, options).status().code() == absl::StatusCode::kDataLoss);
  from.control->FailNth(Member::kCopyout, 17, absl::DataLossError("link down"));
  CHECK(Copy(dest, src, options).status().code() == absl::StatusCode::kDataLoss);
  to.control->ThrowNth(Member::kCopyin, 5, std::make_exception_ptr(42));
  CHECK_THROWS_AS(Copy(dest, src, options).IgnoreError(), int);
  from.control->ThrowNth(Member::kCopyout, 5, std::make_exception_ptr(42));
  CHECK_THROWS_AS(Copy(dest, src, options).IgnoreError(), int);
  from.control->FailNth(Member::kOffset, 3, absl::InternalError("no view"));
  CHECK(Copy(dest, src, options).status().code() == absl::StatusCode::kInternal);
  CHECK(Copy(dest, src, options).ok());
  Free(src);
  Free(dest);
}

TEST_CASE("the next chunk is read while the last is written") {
  const Device from = MakeDevice();
  const Device to = MakeDevice();
  const BufferRef src = Filled(from.allocator, TextPattern(kMiB));
  const BufferRef dest = Filled(to.allocator, std::string(kMiB, 'x'));
  // The write of the first chunk waits for the read of the second: without overlap this would never end.
  std::atomic<int> reads{0};
  from.control->OnCall(Member::kCopyout, [&] {
    ++reads;
    reads.notify_all();
    return absl::OkStatus();
  });
  to.control->OnCall(Member::kCopyin, [&] {
    for (int seen = reads; seen < 2; seen = reads) reads.wait(seen);
    return absl::OkStatus();
  });
  CHECK(Copy(dest, src, {.staging_bytes = 64 << 10}).ok());
  from.control->ClearFailures();
  Free(src);
  to.control->ClearFailures();
  Free(dest);
}

TEST_CASE("a side without views is staged whole, and no transfer means staging") {
  MockOptions bare;
  bare.absent = {Member::kOffset, Member::kTransfer};
  const Device a = MakeDevice(bare);
  const std::string bytes = TextPattern(5 * kMiB);
  const BufferRef src = Filled(a.allocator, bytes);
  const BufferRef dest = Filled(a.allocator, std::string(bytes.size(), 'x'));
  const CopyReport report = Ok(Copy(dest, src, {.staging_bytes = 64 << 10}));
  CHECK(report.path == CopyPath::kStaged);
  CHECK(report.peak_staging_bytes == bytes.size());
  CHECK((Content(dest) == bytes));
  Free(src);
  Free(dest);
}

TEST_CASE("a device that sees the CPU's writes after synchronize has the copy's bytes on return") {
  const TempDir dir;
  const std::string bytes = TextPattern(3 * kMiB + 5);
  dir.Write("file", bytes);
  const PackedAllocator disk = Ok(Pack(Ok(DiskAllocator(dir / "file"))));
  CpuBuf memory;
  std::string seen;
  Allocator<CpuBuf> record = CpuAllocator();
  record.traits.transfer_domain = 0;
  record.transfer = nullptr;
  record.copy_from_disk = nullptr;
  record.alloc = [&memory, alloc = record.alloc](std::size_t nbytes, const BufferSpec& spec) {
    absl::StatusOr<CpuBuf> made = alloc(nbytes, spec);
    if (made.ok()) memory = *made;
    return made;
  };
  record.synchronize = [&memory, &seen]() -> absl::Status {
    seen.assign(reinterpret_cast<const char*>(memory.data), memory.nbytes);
    return absl::OkStatus();
  };
  const PackedAllocator mapped = Ok(Pack(record));
  for (const PackedAllocator& from : {Cpu(), MakeDevice().allocator, disk}) {
    CAPTURE(from.name());
    for (const bool all : {false, true}) {
      CAPTURE(all);
      const BufferRef src{from, Ok(from.alloc(bytes.size()))};
      if (from != disk) REQUIRE(from.copyin(src.buffer, Bytes(bytes)).ok());
      const BufferRef dest = Filled(mapped, std::string(bytes.size(), 'x'));
      const std::vector<CopyPair> pairs{{dest, src}};
      REQUIRE((all ? CopyAll(pairs).status() : Copy(dest, src).status()).ok());
      CHECK((seen == bytes));
      Free(dest);
      Free(src);
    }
  }
}

TEST_CASE("many buffers: every kind of pair, monotonic progress, cancellation") {
  const TempDir dir;
  const std::string bytes = TextPattern(40 * kMiB);
  const PackedAllocator disk = Ok(Pack(Ok(DiskAllocator(dir.Write("f", bytes)))));
  const AnyBuf file = Ok(disk.alloc(bytes.size()));
  const Device mock = MakeDevice();
  const Device other = MakeDevice();
  const PackedAllocator cpu = Cpu();
  const BufferRef on_device = Filled(other.allocator, bytes);
  std::vector<CopyPair> pairs;
  std::vector<std::size_t> offsets;
  std::size_t offset = 8;
  for (std::size_t i = 0; offset + 3 * kMiB < bytes.size(); ++i) {
    const std::size_t nbytes = i % 5 == 0 ? 3 * kMiB - 1 : i * 1000;
    const PackedAllocator to = i % 2 == 0 ? mock.allocator : cpu;
    const bool from_disk = i % 3 != 0;
    const PackedAllocator from = from_disk ? disk : other.allocator;
    const AnyBuf src = Ok(from.offset(from_disk ? file : on_device.buffer, nbytes, offset));
    pairs.push_back({{to, Ok(to.alloc(nbytes))}, {from, src}});
    offsets.push_back(offset);
    offset += nbytes;
  }
  std::uint64_t last = 0;
  std::uint64_t all = 0;
  CopyAllOptions options;
  options.staging_bytes = kMiB;
  options.progress = [&](std::uint64_t done, std::uint64_t total) {
    CHECK(done >= last);
    CHECK(done - last <= 64 * kMiB);
    last = done;
    all = total;
    return true;
  };
  const CopyReport report = Ok(CopyAll(pairs, options));
  CHECK(last == all);
  CHECK(report.bytes == all);
  CHECK(report.path == CopyPath::kStaged);
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    REQUIRE((Content(pairs[i].dest) == bytes.substr(offsets[i], pairs[i].dest.buffer.nbytes())));
  }
  for (std::uint64_t stop_at = 0; stop_at < all; stop_at += all / 7) {
    std::uint64_t heard = 0;
    options.progress = [&](std::uint64_t done, std::uint64_t) {
      heard = done;
      return done <= stop_at;
    };
    CHECK(CopyAll(pairs, options).status().code() == absl::StatusCode::kCancelled);
    CHECK(heard > stop_at);
  }
  for (const CopyPair& pair : pairs) Free(pair.dest);
  Free(on_device);
  CHECK(mock.control->live_blocks() == 0);
  CHECK(mock.control->misuses().empty());
}

TEST_CASE("progress of one large copy comes at least every 64 MiB") {
  const PackedAllocator cpu = Cpu();
  constexpr std::size_t kSize = 200 * kMiB;
  const BufferRef src{cpu, Ok(cpu.alloc(kSize))};
  const BufferRef dest{cpu, Ok(cpu.alloc(kSize))};
  int calls = 0;
  std::uint64_t last = 0;
  CopyAllOptions options;
  options.progress = [&](std::uint64_t done, std::uint64_t) {
    CHECK(done - last <= 64 * kMiB);
    last = done;
    return ++calls < 3;
  };
  const PackedAllocator second = Cpu();
  const BufferRef apart{second, Ok(second.alloc(kSize))};
  for (const BufferRef& to : {dest, apart}) {
    const CopyPair pair{to, src};
    calls = 0;
    last = 0;
    CHECK(CopyAll({&pair, 1}, options).status().code() == absl::StatusCode::kCancelled);
    CHECK(calls == 3);
    CHECK(last < kSize);
  }
  const CopyPair itself{src, src};
  calls = 0;
  last = kSize;  // nothing is copied, and told once
  CHECK(Ok(CopyAll({&itself, 1}, options)).path == CopyPath::kNothing);
  CHECK(calls == 1);
  Free(apart);
  Free(src);
  Free(dest);
}

TEST_CASE("a copy inside one device without transfer is a memmove too, either way round") {
  for (const bool pointers : {true, false}) {
    MockOptions options;
    options.absent = {Member::kTransfer};
    options.address_is_pointer = pointers;
    const Device mock = MakeDevice(options);
    constexpr std::size_t kSize = 100'000;
    const std::string bytes = TextPattern(kSize);
    const BufferRef whole = Filled(mock.allocator, bytes);
    constexpr std::size_t kPart = 70'000;
    for (const auto& places : {std::pair<std::size_t, std::size_t>{5001, 1}, {1, 5001}}) {
      const std::size_t to = places.first;
      const std::size_t from = places.second;
      for (const bool all : {false, true}) {
        CAPTURE(to);
        CAPTURE(all);
        REQUIRE(mock.allocator.copyin(whole.buffer, Bytes(bytes)).ok());
        const CopyPair pair{{mock.allocator, Ok(mock.allocator.offset(whole.buffer, kPart, to))},
                            {mock.allocator, Ok(mock.allocator.offset(whole.buffer, kPart, from))}};
        constexpr std::size_t kStaging = 16'384;  // many chunks
        if (all) {
          CHECK(Ok(CopyAll({&pair, 1}, {.staging_bytes = kStaging})).path == CopyPath::kStaged);
        } else {
          CHECK(Ok(Copy(pair.dest, pair.src, {.staging_bytes = kStaging})).path == CopyPath::kStaged);
        }
        std::string moved = bytes;
        moved.replace(to, kPart, bytes, from, kPart);
        CHECK((Content(whole) == moved));
      }
    }
    Free(whole);
  }
}

TEST_CASE("CopyAll with progress moves inside one buffer, either way round, pointers and handles") {
  constexpr std::size_t kSize = 100 * kMiB;  // several parts
  std::string bytes = TextPattern(kSize);
  for (const PackedAllocator& device : {Cpu(), MakeDevice({.address_is_pointer = false}).allocator}) {
    const BufferRef all = Filled(device, bytes);
    constexpr std::size_t kMoved = 90 * kMiB;
    for (const auto& places : {std::pair<std::size_t, std::size_t>{5001, 1}, {1, 5001}}) {
      const std::size_t to = places.first;
      const std::size_t from = places.second;
      CAPTURE(device.name());
      CAPTURE(to);
      const CopyPair pair{{device, Ok(device.offset(all.buffer, kMoved, to))},
                          {device, Ok(device.offset(all.buffer, kMoved, from))}};
      int calls = 0;
      CopyAllOptions options;
      options.progress = [&calls](std::uint64_t, std::uint64_t) { return ++calls > 0; };
      REQUIRE(Ok(CopyAll({&pair, 1}, options)).path == CopyPath::kTransfer);
      CHECK(calls > 1);
      std::string moved = bytes;
      std::memmove(moved.data() + to, moved.data() + from, kMoved);
      CHECK((Content(all) == moved));
      REQUIRE(device.copyin(all.buffer, Bytes(bytes)).ok());
    }
    Free(all);
  }
}

TEST_CASE("CopyAll with progress moves inside one file that is open twice") {
  const TempDir dir;
  constexpr std::size_t kSize = 40 * kMiB;  // more than one part
  const std::string path = dir.Write("moved", "");
  const PackedAllocator writer = Ok(Pack(Ok(DiskAllocator(path, {.write = true}))));
  const BufferRef all{writer, Ok(writer.alloc(kSize))};
  const PackedAllocator reader = Ok(Pack(Ok(DiskAllocator(path))));
  // One mark in each MiB.
  for (std::size_t mib = 0; mib < kSize / kMiB; ++mib) {
    const auto mark = static_cast<std::byte>(mib + 1);
    REQUIRE(writer.copyin(Ok(writer.offset(all.buffer, 1, mib * kMiB)), {&mark, 1}).ok());
  }
  const AnyBuf to_read = Ok(reader.alloc(kSize));
  const CopyPair pair{{writer, Ok(writer.offset(all.buffer, kSize - kMiB, kMiB))},
                      {reader, Ok(reader.offset(to_read, kSize - kMiB, 0))}};
  CopyAllOptions options;
  options.progress = [](std::uint64_t, std::uint64_t) { return true; };
  REQUIRE(CopyAll({&pair, 1}, options).ok());
  for (std::size_t mib = 1; mib < kSize / kMiB; ++mib) {
    std::byte mark{};
    REQUIRE(writer.copyout({&mark, 1}, Ok(writer.offset(all.buffer, 1, mib * kMiB))).ok());
    CHECK(mark == static_cast<std::byte>(mib));
  }
}

TEST_CASE("a staged copy goes on where no thread can be had") {
  const Device from = MakeDevice();
  const Device to = MakeDevice();
  const std::string bytes = TextPattern(300'000);
  const BufferRef src = Filled(from.allocator, bytes);
  const BufferRef dest{to.allocator, Ok(to.allocator.alloc(bytes.size()))};
  const pid_t child = fork();
  if (child == 0) {
    const rlimit none{0, 0};
    const bool limited = (getuid() != 0 || setuid(65534) == 0) && setrlimit(RLIMIT_NPROC, &none) == 0;
    bool copied = false;
    try {
      copied = limited && Copy(dest, src, {.staging_bytes = 16'384}).ok();
    } catch (const std::exception&) {
    }
    _exit(copied && Content(dest) == bytes ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  Free(src);
  Free(dest);
}

TEST_CASE("extents without a file are refused by every copy") {
  Allocator<DiskExtent> record = Ok(DiskAllocator(TempDir().Write("some", "bytes")));
  record.alloc = [](std::size_t nbytes, const BufferSpec&) -> absl::StatusOr<DiskExtent> {
    return DiskExtent{nullptr, 0, nbytes};
  };
  const PackedAllocator broken = Ok(Pack(record));
  const BufferRef src{broken, Ok(broken.alloc(10))};
  for (const PackedAllocator& device : {Cpu(), MakeDevice().allocator, broken}) {
    const CopyPair pair{{device, Ok(device.alloc(10))}, src};
    CHECK(Copy(pair.dest, pair.src).status().code() == absl::StatusCode::kInvalidArgument);
    CHECK(CopyAll({&pair, 1}).status().code() == absl::StatusCode::kInvalidArgument);
    if (!(device == broken)) Free(pair.dest);
  }
}

TEST_CASE("Buffer::CopyFrom copies between devices, allocating at first use") {
  const Device mock = MakeDevice();
  const std::string bytes = TextPattern(5000);
  const Buffer src(Cpu(), bytes.size());
  REQUIRE(src.CopyIn(Bytes(bytes)).ok());
  const Buffer dest(mock.allocator, bytes.size());
  CHECK(Ok(dest.CopyFrom(src)).path == CopyPath::kCopyIn);
  CHECK((Content(Ok(dest.ref())) == bytes));
  CHECK(Buffer(mock.allocator, 10).CopyFrom(src).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(dest.CopyFrom(Buffer()).status().code() == absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace packalloc
