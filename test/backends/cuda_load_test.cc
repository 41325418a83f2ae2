// copy_from_disk and Copy onto CUDA, over the strict fake driver: page-locked staging stays bounded, reads and copies
// overlap, and nothing is left behind by errors.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "lib/disk/system_calls.h"
#include "packalloc/backends/cpu.h"
#include "packalloc/backends/disk.h"
#include "packalloc/copy.h"
#include "packalloc/packed_allocator.h"
#include "test/backends/cuda_fake.h"
#include "test/disk/faulty_disk.h"
#include "test/temp_dir.h"

namespace cuda_test {
namespace {

using packalloc::AnyBuf;
using packalloc::Copy;
using packalloc::CopyPath;
using packalloc::CudaNative;
using packalloc::DiskExtent;
using packalloc::DiskFile;
using packalloc::DiskOptions;
using packalloc::FaultyDisk;
using packalloc::Find;
using packalloc::Pack;
using packalloc::PackedAllocator;
using packalloc::TempDir;

constexpr std::size_t kMiB = std::size_t{1} << 20;

std::string Text(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

DiskExtent Extent(const std::string& path, const DiskOptions& options = {}) {
  std::shared_ptr<DiskFile> file = Must(DiskFile::Open(path, options));
  const std::uint64_t size = Must(file->size());
  return {std::move(file), 0, size};
}

TEST_CASE("from disk to device memory, pinned and managed, cached and not, within the ring's memory") {
  const TempDir dir;
  const std::string bytes = packalloc::TextPattern(9 * kMiB + 77);
  const std::string path = dir.Write("f", bytes);
  UnderEachSchedule(1, [&](fake_cuda_schedule) {
    for (const double cached : {0.0, 1.0}) {
      for (const std::size_t slots : {std::size_t{4}, std::size_t{2}, std::size_t{0}}) {
        CAPTURE(cached);
        CAPTURE(slots);
        CudaOptions options;
        options.staging_slot_bytes = kMiB;
        options.staging_slots = slots == 0 ? 1 : slots;
        options.pinned_staging = slots != 0;
        const Allocator<CudaBuf> cuda = Open(options);
        auto system = std::make_shared<FaultyDisk>();
        system->cached_part = cached;
        const DiskExtent whole = Extent(path, {.system = system});
        for (const packalloc::BufferSpec& spec : {packalloc::BufferSpec{}, packalloc::BufferSpec{.host = true},
                                                  packalloc::BufferSpec{.cpu_access = true}}) {
          const CudaBuf buf = Must(cuda.alloc(bytes.size(), spec));
          Must(cuda.copy_from_disk(buf, whole, bytes.size()));
          CHECK((Text(Read(cuda, buf)) == bytes));
          // An odd place of the file to an odd place of the buffer, and nothing beside it.
          const CudaBuf view = Must(cuda.offset(buf, 5 * kMiB, 3));
          const DiskExtent part{whole.file, 4097, 5 * kMiB - 1};
          Must(cuda.copy_from_disk(view, part, part.nbytes));
          std::string want = bytes;
          want.replace(3, part.nbytes, bytes, 4097, part.nbytes);
          CHECK((Text(Read(cuda, buf)) == want));
          Must(cuda.free(buf, bytes.size(), spec));
        }
        const packalloc::CudaStats stats = Find<CudaNative>(cuda)->stats();
        CHECK(stats.staging_bytes <= slots * kMiB);
        CHECK(stats.staging_slots <= slots);
        CHECK(stats.staging_is_pinned == (slots != 0));
      }
    }
  });
}

TEST_CASE("an error of the file leaves the buffer valid and the ring free") {
  const TempDir dir;
  const std::string bytes = packalloc::TextPattern(9 * kMiB);
  const std::string path = dir.Write("f", bytes);
  UnderEachSchedule(1, [&](fake_cuda_schedule) {
    const Allocator<CudaBuf> cuda = Open();
    auto system = std::make_shared<FaultyDisk>();
    system->cached_part = 1.0;
    system->fails_at = 6 * kMiB;
    const DiskExtent bad = Extent(path, {.system = system});
    const CudaBuf buf = Must(cuda.alloc(bytes.size(), {}));
    CHECK(cuda.copy_from_disk(buf, bad, bytes.size()).code() == absl::StatusCode::kDataLoss);
    const DiskExtent good = Extent(path);
    CHECK(cuda.copy_from_disk(buf, good, bytes.size() + 1).code() == absl::StatusCode::kOutOfRange);
    CHECK(cuda.copy_from_disk(buf, DiskExtent{}, 0).code() == absl::StatusCode::kInvalidArgument);
    Must(cuda.copy_from_disk(buf, good, bytes.size()));
    CHECK((Text(Read(cuda, buf)) == bytes));
    Must(cuda.free(buf, bytes.size(), {}));
  });
}

TEST_CASE("during a graph capture loading is refused and the capture stays whole") {
  const TempDir dir;
  const std::string path = dir.Write("f", packalloc::TextPattern(1000));
  const Fake fake;
  const Allocator<CudaBuf> cuda = Open();
  const CudaBuf buf = Must(cuda.alloc(1000, {}));
  const auto native = Find<CudaNative>(cuda);
  CUcontext context = reinterpret_cast<CUcontext>(native->context());
  CUstream stream = reinterpret_cast<CUstream>(native->stream());
  REQUIRE(cuCtxPushCurrent_v2(context) == CUDA_SUCCESS);
  REQUIRE(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) == CUDA_SUCCESS);
  CHECK(cuda.copy_from_disk(buf, Extent(path), 1000).code() == absl::StatusCode::kFailedPrecondition);
  CUgraph graph = nullptr;
  CHECK(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
  if (graph != nullptr) CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
  CHECK(cuCtxPopCurrent_v2(&context) == CUDA_SUCCESS);
  Must(cuda.free(buf, 1000, {}));
}

TEST_CASE("Copy between CUDA, CPU and DISK, device addresses never touched by the CPU") {
  const TempDir dir;
  const std::string bytes = packalloc::TextPattern(6 * kMiB + 1);
  const std::string path = dir.Write("f", bytes);
  UnderEachSchedule(2, [&](fake_cuda_schedule) {
    const PackedAllocator cuda = Must(Pack(Open()));
    CudaOptions second;
    second.device = 1;
    const PackedAllocator other = Must(Pack(Open(second)));
    const PackedAllocator cpu = Must(Pack(packalloc::CpuAllocator()));
    const PackedAllocator disk = Must(Pack(Must(packalloc::DiskAllocator(path))));
    const AnyBuf file = Must(disk.alloc(bytes.size()));
    const AnyBuf on_cuda = Must(cuda.alloc(bytes.size()));
    const AnyBuf on_other = Must(other.alloc(bytes.size()));
    const AnyBuf on_cpu = Must(cpu.alloc(bytes.size()));
    CHECK(Must(Copy({cuda, on_cuda}, {disk, file})).path == CopyPath::kFromDisk);
    CHECK(Must(Copy({other, on_other}, {cuda, on_cuda})).path == CopyPath::kTransfer);
    CHECK(Must(Copy({cpu, on_cpu}, {other, on_other})).path == CopyPath::kCopyOut);
    CHECK(std::memcmp(on_cpu.get<packalloc::CpuBuf>()->data, bytes.data(), bytes.size()) == 0);
    CHECK(Must(Copy({cuda, on_cuda}, {cpu, on_cpu})).path == CopyPath::kCopyIn);
    std::string back(bytes.size(), '\0');
    Must(cuda.copyout({reinterpret_cast<std::byte*>(back.data()), back.size()}, on_cuda));
    CHECK((back == bytes));
    Must(cuda.free(on_cuda, bytes.size()));
    Must(other.free(on_other, bytes.size()));
    Must(cpu.free(on_cpu, bytes.size()));
  });
}

}  // namespace
}  // namespace cuda_test
