// copy_from_disk and Copy on OpenCL.
#include <doctest/doctest.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "packalloc/backends/cpu.h"
#include "packalloc/backends/disk.h"
#include "packalloc/backends/opencl.h"
#include "packalloc/copy.h"
#include "packalloc/packed_allocator.h"
#include "test/backends/opencl/support.h"
#include "test/disk/faulty_disk.h"
#include "test/temp_dir.h"

namespace packalloc {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

template <typename T>
T Ok(absl::StatusOr<T> value) {
  REQUIRE_MESSAGE(value.ok(), value.status().ToString());
  return *std::move(value);
}

std::string Content(const PackedAllocator& allocator, const AnyBuf& buf) {
  std::string bytes(buf.nbytes(), '\0');
  REQUIRE(allocator.copyout({reinterpret_cast<std::byte*>(bytes.data()), bytes.size()}, buf).ok());
  return bytes;
}

TEST_CASE("from disk to an OpenCL buffer and to a view, cached and not, whatever the staging") {
  const TempDir dir;
  const std::string bytes = TextPattern(11 * kMiB + 3);
  const std::string path = dir.Write("f", bytes);
  const PackedAllocator cl = Ok(Pack(Ok(OpenClAllocator())));
  for (const double cached : {0.0, 1.0}) {
    for (const std::size_t staging : {64 * kMiB, kMiB, std::size_t{10000}}) {
      CAPTURE(cached);
      CAPTURE(staging);
      auto system = std::make_shared<FaultyDisk>();
      system->cached_part = cached;
      const std::shared_ptr<DiskFile> file = Ok(DiskFile::Open(path, {.staging_bytes = staging, .system = system}));
      const AnyBuf buf = Ok(cl.alloc(bytes.size()));
      REQUIRE(cl.copy_from_disk(buf, {file, 0, bytes.size()}, bytes.size()).ok());
      CHECK((Content(cl, buf) == bytes));
      const AnyBuf view = Ok(cl.offset(buf, kMiB, 129));
      REQUIRE(cl.copy_from_disk(view, {file, 4097, kMiB}, kMiB).ok());
      std::string want = bytes;
      want.replace(129, kMiB, bytes, 4097, kMiB);
      CHECK((Content(cl, buf) == want));
      REQUIRE(cl.free(buf, bytes.size()).ok());
    }
  }
}

TEST_CASE("an error of the file is told, and the buffer works afterwards") {
  const TempDir dir;
  const std::string bytes = TextPattern(9 * kMiB);
  const std::string path = dir.Write("f", bytes);
  const PackedAllocator cl = Ok(Pack(Ok(OpenClAllocator())));
  auto system = std::make_shared<FaultyDisk>();
  system->cached_part = 1.0;
  system->fails_at = 6 * kMiB;
  const std::shared_ptr<DiskFile> bad = Ok(DiskFile::Open(path, {.system = system}));
  const AnyBuf buf = Ok(cl.alloc(bytes.size()));
  CHECK(cl.copy_from_disk(buf, {bad, 0, bytes.size()}, bytes.size()).code() == absl::StatusCode::kDataLoss);
  REQUIRE(cl.copy_from_disk(buf, {Ok(DiskFile::Open(path)), 0, bytes.size()}, bytes.size()).ok());
  CHECK((Content(cl, buf) == bytes));
  REQUIRE(cl.free(buf, bytes.size()).ok());
}

TEST_CASE("reads go on while a copy to the device is under way, as far as the staging goes") {
  const std::optional<std::string> device = testing::Gate::Device();
  if (!device.has_value()) return;
  const TempDir dir;
  const std::string bytes = TextPattern(40 * kMiB);
  const std::string path = dir.Write("f", bytes);
  const PackedAllocator cl = Ok(Pack(Ok(OpenClAllocator({.device = *device}))));
  const auto native = Find<OpenClNative>(cl);
  const AnyBuf buf = Ok(cl.alloc(bytes.size()));
  for (const std::size_t slots : {2, 4, 8}) {
    CAPTURE(slots);
    std::mutex mutex;
    std::condition_variable changed;
    std::size_t reads = 0;
    auto system = std::make_shared<FaultyDisk>();
    system->cached_part = 0.0;
    system->uring_init_error = -EPERM;  // then each read is a pread, which the test hears of
    system->before_pread = [&](std::uint64_t) {
      const std::lock_guard lock(mutex);
      ++reads;
      changed.notify_all();
    };
    const std::shared_ptr<DiskFile> file =
        Ok(DiskFile::Open(path, {.staging_bytes = slots * 4 * kMiB, .system = system}));
    // No copy is done before the gate opens, so that more reads than one show that none waits for a copy.
    testing::Gate gate(native->context());
    gate.Close(native->queue());
    absl::Status loaded;
    std::thread loader([&] { loaded = cl.copy_from_disk(buf, {file, 0, bytes.size()}, bytes.size()); });
    {
      std::unique_lock lock(mutex);
      CHECK(changed.wait_for(lock, std::chrono::minutes(1), [&] { return reads >= slots; }));
    }
    gate.Open();
    loader.join();
    REQUIRE_MESSAGE(loaded.ok(), loaded.ToString());
    CHECK((Content(cl, buf) == bytes));
  }
  REQUIRE(cl.free(buf, bytes.size()).ok());
}

TEST_CASE("Copy between CPU, OpenCL, another context and DISK") {
  const TempDir dir;
  const std::string bytes = TextPattern(6 * kMiB + 1);
  const std::string path = dir.Write("f", bytes);
  const PackedAllocator cpu = Ok(Pack(CpuAllocator()));
  const PackedAllocator cl = Ok(Pack(Ok(OpenClAllocator())));
  const PackedAllocator disk = Ok(Pack(Ok(DiskAllocator(path, {.write = true}))));
  // A queue of the test's own has a context of its own: another transfer domain.
  const testing::OwnQueue own;
  const PackedAllocator apart = Ok(Pack(Ok(OpenClAllocator({.queue = own.queue()}))));
  REQUIRE(!cl.same_transfer_domain(apart));
  const auto ref = [&](const PackedAllocator& allocator) {
    return BufferRef{allocator, Ok(allocator.alloc(bytes.size()))};
  };
  const BufferRef file = ref(disk);
  const BufferRef first = ref(cl);
  const BufferRef second = ref(cl);
  const BufferRef far = ref(apart);
  const BufferRef host = ref(cpu);
  CHECK(Ok(Copy(first, file)).path == CopyPath::kFromDisk);
  CHECK(Ok(Copy(second, first)).path == CopyPath::kTransfer);
  if (testing::IsOclgrind(Find<OpenClNative>(cl)->device())) {
    MESSAGE("in two steps: Oclgrind crashes when one thread reads while another writes");
    CHECK(Ok(Copy(host, second)).path == CopyPath::kCopyOut);
    CHECK(Ok(Copy(far, host)).path == CopyPath::kCopyIn);
  } else {
    const CopyReport staged = Ok(Copy(far, second, {.staging_bytes = kMiB}));
    CHECK(staged.path == CopyPath::kStaged);
    CHECK(staged.peak_staging_bytes == kMiB);
  }
  CHECK(Ok(Copy(host, far)).path == CopyPath::kCopyOut);
  CHECK((Content(cpu, host.buffer) == bytes));
  REQUIRE(cpu.copyin(host.buffer, absl::MakeConstSpan(reinterpret_cast<const std::byte*>("new"), 3)).ok());
  CHECK(Ok(Copy(first, host)).path == CopyPath::kCopyIn);
  CHECK(Ok(Copy(file, first)).path == CopyPath::kStaged);
  CHECK((Content(disk, file.buffer) == "new" + bytes.substr(3)));
  for (const BufferRef& one : {first, second, far, host}) REQUIRE(one.allocator.free(one.buffer, bytes.size()).ok());
}

}  // namespace
}  // namespace packalloc
