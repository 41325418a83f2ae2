// Copies between the device, the host, another device and files, which may come short.
#include <doctest/doctest.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "packalloc/backends/cpu.h"
#include "packalloc/backends/disk.h"
#include "packalloc/backends/mock.h"
#include "packalloc/copy.h"
#include "packalloc/disk_file.h"
#include "test/backends/device_case.h"
#include "test/disk/faulty_disk.h"
#include "test/temp_dir.h"

namespace packalloc::testing {
namespace {

void CopiesBetweenUnlikeDevices(const DeviceUnderTest& device) {
  const PackedAllocator memory = device.open();
  const PackedAllocator cpu = Ok(Pack(CpuAllocator()));
  const std::string text = TextPattern(1000);
  const BufferRef from = Filled(cpu, text);
  const BufferRef there = Filled(memory, std::string(1000, 'x'));
  const BufferRef back = Filled(cpu, std::string(1000, 'y'));
  CHECK(Ok(Copy(there, from)).path == CopyPath::kCopyIn);
  CHECK(Ok(Copy(back, there)).path == CopyPath::kCopyOut);
  CHECK((!device.moves_bytes || Content(cpu, back.buffer) == text));

  const BufferRef shorter = Filled(memory, std::string(999, 'z'));
  const std::uint64_t calls = device.calls();
  CHECK(absl::IsInvalidArgument(Copy(shorter, from).status()));
  CHECK(absl::IsInvalidArgument(Copy(back, shorter).status()));
  CHECK(device.calls() == calls);
  CHECK(Holds(device, memory, shorter.buffer, std::string(999, 'z')));
  CHECK((!device.moves_bytes || Content(cpu, back.buffer) == text));

  // Staged, to and from a device whose memory the CPU cannot reach; and the second half fails.
  Allocator<MockBuf> mock = MockAllocator();
  mock.host_ptr = nullptr;
  const PackedAllocator other = Ok(Pack(mock));
  const std::string large = TextPattern(kMiB + 7);
  const CopyOptions options{.staging_bytes = kMiB / 4};
  const BufferRef source = Filled(other, large);
  const BufferRef middle = Filled(memory, std::string(large.size(), 'x'));
  const BufferRef end = Filled(other, std::string(large.size(), 'y'));
  for (const bool failing : {true, false}) {
    if (failing) device.fail_write(4);
    const absl::StatusOr<CopyReport> copied = Copy(middle, source, options);
    device.heal();
    CHECK(copied.ok() != failing);
    if (copied.ok()) CHECK(copied->path == CopyPath::kStaged);
  }
  CHECK(Holds(device, memory, middle.buffer, large));
  Find<MockControl>(mock)->FailNth(Member::kCopyin, 4, absl::DataLossError("link down"));
  CHECK(absl::IsDataLoss(Copy(end, middle, options).status()));
  CHECK(Ok(Copy(end, middle, options)).path == CopyPath::kStaged);
  CHECK((!device.moves_bytes || Content(other, end.buffer) == large));
  for (const BufferRef& ref : {from, there, back, shorter, source, middle, end}) Free(ref.allocator, ref.buffer);
}

// By transfer, by Copy, and without transfer, in one chunk and in many: as memmove.
void OverlappingCopiesAreMemmove(const DeviceUnderTest& device) {
  const PackedAllocator whole = device.open();
  AnyRecord record = whole.record();
  record.transfer = nullptr;
  const PackedAllocator bare = Ok(whole.WithRecord(record));
  constexpr CopyOptions kChunks{.staging_bytes = 16 * kKiB};
  struct Move {
    std::size_t to, from, nbytes;
  };
  for (const std::size_t scale : {1, 256}) {
    const std::string text = TextPattern(256 * scale);
    for (const PackedAllocator& memory : {whole, bare}) {
      const BufferRef base = Filled(memory, text);
      for (const Move& move : {Move{16 * scale, 0, 128 * scale}, Move{0, 16 * scale, 128 * scale}, Move{0, 0, 256}}) {
        const AnyBuf dest = Ok(memory.offset(base.buffer, move.nbytes, move.to));
        const AnyBuf src = Ok(memory.offset(base.buffer, move.nbytes, move.from));
        std::string moved = text;
        std::memmove(moved.data() + move.to, moved.data() + move.from, move.nbytes);
        const auto check = [&](const std::function<absl::Status()>& copy) {
          Ok(memory.copyin(base.buffer, Bytes(text)));
          Ok(copy());
          CHECK(Holds(device, memory, base.buffer, moved));
        };
        check([&] { return Copy({memory, dest}, {memory, src}, kChunks).status(); });
        if (!memory.supports_transfer()) continue;
        check([&] { return memory.transfer(dest, src, move.nbytes); });
        // Between the buffer itself and its own view.
        if (move.to == 0) check([&] { return memory.transfer(base.buffer, src, move.nbytes); });
        if (move.from == 0) check([&] { return memory.transfer(dest, base.buffer, move.nbytes); });
      }
      const std::uint64_t calls = device.calls();
      CHECK(Ok(Copy(base, base)).path == CopyPath::kNothing);
      CHECK(device.calls() == calls);
      Free(memory, base.buffer);
    }
  }
}

// A file under system calls that are as `set` makes them.
BufferRef FaultyFile(const std::string& path, std::size_t nbytes, const std::function<void(FaultyDisk&)>& set) {
  auto system = std::make_shared<FaultyDisk>();
  set(*system);
  const PackedAllocator disk = Ok(Pack(Ok(DiskAllocator(path, {.system = std::move(system)}))));
  return {disk, Ok(disk.alloc(nbytes))};
}

void FilesThatComeShortArriveWhole(const DeviceUnderTest& device) {
  const TempDir dir;
  const std::string text = TextPattern(10'000);
  const std::string path = dir.Write("f", text);
  const PackedAllocator memory = device.open();
  const BufferRef base = Filled(memory, std::string(12'000, 'x'));
  const std::vector<std::function<void(FaultyDisk&)>> ways = {
      [](FaultyDisk& disk) { disk.cached_part = 1.0, disk.most_per_pread = 1000; },
      [](FaultyDisk& disk) { disk.cached_part = 1.0, disk.interruptions = 3; },
      [](FaultyDisk& disk) { disk.cached_part = 0.0, disk.direct_open_error = EINVAL; },
      [](FaultyDisk& disk) { disk.cached_part = 0.0, disk.direct_read_error = disk.uring_init_error = EINVAL; },
      [](FaultyDisk& disk) { disk.cached_part = 0.0, disk.uring_init_error = -EPERM, disk.most_per_pread = 512; },
      [](FaultyDisk& disk) {
        disk.cached_part = 0.0;
        disk.uring_result = [](int result, std::uint64_t, std::size_t) { return result > 512 ? 512 : result; };
      },
  };
  for (const auto& way : ways) {
    const BufferRef file = FaultyFile(path, text.size(), way);
    for (const auto& [at, nbytes] : std::initializer_list<std::pair<std::size_t, std::size_t>>{
             {1, 100}, {4095, 2}, {8192, 1808}, {0, 10'000}, {10'000, 0}}) {
      Ok(memory.copyin(base.buffer, Bytes(std::string(12'000, 'x'))));
      const BufferRef dest{memory, Ok(memory.offset(base.buffer, nbytes, 1001))};
      Ok(Copy(dest, {file.allocator, Ok(file.allocator.offset(file.buffer, nbytes, at))}).status());
      std::string want(12'000, 'x');
      want.replace(1001, nbytes, text, at, nbytes);
      CHECK(Holds(device, memory, base.buffer, want));
    }
  }
  Free(memory, base.buffer);
}

void FilesThatEndTooSoonAreErrors(const DeviceUnderTest& device) {
  const TempDir dir;
  const std::string text = TextPattern(10'000);
  const std::string path = dir.Write("f", text);
  const PackedAllocator memory = device.open();
  const BufferRef dest = Filled(memory, std::string(10'000, 'x'));
  const auto works = [&] {
    Ok(Copy(dest, FaultyFile(path, text.size(), [](FaultyDisk&) {})).status());
    CHECK(Holds(device, memory, dest.buffer, text));
  };
  const absl::Status broken =
      Copy(dest, FaultyFile(path, text.size(), [](FaultyDisk& disk) { disk.fails_at = 5000; })).status();
  CHECK(absl::IsDataLoss(broken));
  CHECK(broken.message().find(path) != std::string::npos);
  CHECK(broken.message().find("5000") != std::string::npos);
  works();

  if (memory.supports_copy_from_disk()) {
    const std::shared_ptr<DiskFile> file = Ok(DiskFile::Open(path));
    for (const auto& [at, nbytes] : std::initializer_list<std::pair<std::uint64_t, std::size_t>>{
             {8192, 4096}, {10'000, 1}, {SIZE_MAX - 10, 100}, {std::uint64_t{1} << 63, 1}}) {
      const absl::Status beyond = memory.copy_from_disk(dest.buffer, DiskExtent{file, at, nbytes}, nbytes);
      CHECK_MESSAGE(absl::IsOutOfRange(beyond), beyond.ToString());
    }
    Ok(memory.copy_from_disk(dest.buffer, DiskExtent{file, 10'000, 0}, 0));
    works();
  }

  // Cut off between two reads.
  const std::string large = dir.Write("large", TextPattern(kMiB));
  const BufferRef to{memory, Ok(memory.alloc(kMiB))};
  const auto cut = [&](FaultyDisk& disk) {
    disk.cached_part = 1.0;
    disk.most_per_pread = 4096;
    disk.before_pread = [&large](std::uint64_t offset) {
      if (offset > 0) CHECK(truncate(large.c_str(), 4096) == 0);
    };
  };
  const absl::Status shorter = Copy(to, FaultyFile(large, kMiB, cut)).status();
  CHECK_MESSAGE(absl::IsOutOfRange(shorter), shorter.ToString());
  CHECK(shorter.message().find("4096") != std::string::npos);
  works();
  for (const BufferRef& ref : {dest, to}) Free(memory, ref.buffer);
}

}  // namespace

DeviceCaseList CopyCases() {
  return {
      {"copies between unlike devices", CopiesBetweenUnlikeDevices},
      {"overlapping copies are memmove", OverlappingCopiesAreMemmove},
      {"files that come short arrive whole", FilesThatComeShortArriveWhole},
      {"files that end too soon are errors", FilesThatEndTooSoonAreErrors},
  };
}

}  // namespace packalloc::testing
