#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "bench/bars.h"
#include "bench/measure.h"
#include "bench/raw_readers.h"
#include "lib/disk/system_calls.h"
#include "packalloc/backends/cpu.h"
#include "packalloc/backends/disk.h"
#include "packalloc/copy.h"
#include "packalloc/packed_allocator.h"
#include "packalloc/registry.h"

namespace packalloc::bench {
namespace {

constexpr std::size_t kFileBytes = std::size_t{1} << 30;
constexpr int kRounds = 9;

// A file of 1 GiB of bytes that repeat nowhere near, under PACKALLOC_BENCH_DIR, else the temporary folder; removed at
// the end. And the memory that it is read into, touched.
class DiskBench {
 public:
  static absl::StatusOr<std::unique_ptr<DiskBench>> Make() {
    std::unique_ptr<DiskBench> bench(new DiskBench);
    const char* folder = std::getenv("PACKALLOC_BENCH_DIR");
    bench->path_ = absl::StrCat(folder != nullptr ? folder : std::filesystem::temp_directory_path().string(),
                                "/packalloc-bench-XXXXXX");
    bench->fd_ = mkstemp(bench->path_.data());
    if (bench->fd_ < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot make ", bench->path_));
    absl::StatusOr<PackedAllocator> cpu = Pack(CpuAllocator());
    if (!cpu.ok()) return cpu.status();
    bench->cpu_ = *cpu;
    for (AnyBuf* buf : {&bench->dest_, &bench->want_}) {
      absl::StatusOr<AnyBuf> made = cpu->alloc(kFileBytes);
      if (!made.ok()) return made.status();
      *buf = *made;
    }
    std::mt19937_64 random(1);
    auto* words = reinterpret_cast<std::uint64_t*>(bench->want());
    for (std::size_t i = 0; i < kFileBytes / sizeof *words; ++i) words[i] = random();
    std::memset(bench->dest(), 1, kFileBytes);
    for (std::size_t at = 0; at < kFileBytes;) {
      const ssize_t wrote = pwrite(bench->fd_, bench->want() + at, kFileBytes - at, static_cast<off_t>(at));
      if (wrote <= 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", bench->path_));
      at += static_cast<std::size_t>(wrote);
    }
    if (fsync(bench->fd_) != 0) return absl::ErrnoToStatus(errno, "fsync");
    absl::StatusOr<Allocator<DiskExtent>> disk = DiskAllocator(bench->path_);
    if (!disk.ok()) return disk.status();
    absl::StatusOr<PackedAllocator> packed = Pack(*disk);
    if (!packed.ok()) return packed.status();
    bench->disk_ = *packed;
    absl::StatusOr<AnyBuf> file = packed->alloc(kFileBytes);
    if (!file.ok()) return file.status();
    bench->file_ = *file;
    return bench;
  }
  ~DiskBench() {
    if (!dest_.empty()) cpu_.free(dest_, kFileBytes).IgnoreError();
    if (!want_.empty()) cpu_.free(want_, kFileBytes).IgnoreError();
    if (fd_ < 0) return;
    close(fd_);
    unlink(path_.c_str());
  }

  std::byte* dest() const { return dest_.get<CpuBuf>()->data; }
  std::byte* want() const { return want_.get<CpuBuf>()->data; }
  const std::string& path() const { return path_; }
  const PackedAllocator& cpu() const { return cpu_; }
  const PackedAllocator& disk() const { return disk_; }
  const AnyBuf& dest_buffer() const { return dest_; }
  const AnyBuf& file() const { return file_; }

  // Puts the file's pages out of the page cache, or into it, and makes sure of it.
  absl::Status Prepare(bool cold) const {
    if (cold) {
      posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED);
    } else {
      std::vector<std::byte> piece(std::size_t{1} << 20);
      for (std::size_t at = 0; at < kFileBytes; at += piece.size()) {
        if (pread(fd_, piece.data(), piece.size(), static_cast<off_t>(at)) < 0) return absl::InternalError("pread");
      }
    }
    const double cached = DiskSystemCalls::Default()->CachedPart(fd_, 0, kFileBytes).value_or(-1);
    if (cold ? cached <= 0.01 && cached >= 0 : cached >= 0.99) return absl::OkStatus();
    return absl::UnavailableError(
        absl::StrCat("the page cache does not do as told: ", cached, " of the file is in it"));
  }

  // Seconds of `read` on a file in the wanted state; a negative number where it is refused. Checks every byte.
  absl::StatusOr<double> Time(bool cold, const std::function<bool()>& read) const {
    if (absl::Status ready = Prepare(cold); !ready.ok()) return ready;
    std::memset(dest(), 1, kFileBytes);
    bool whole = false;
    const double seconds = WallSeconds([&] { whole = read(); });
    if (!whole) return -1.0;
    if (std::memcmp(dest(), want(), kFileBytes) != 0) return absl::InternalError("a reader gave other bytes");
    return seconds;
  }

 private:
  DiskBench() = default;
  std::string path_;
  int fd_ = -1;
  PackedAllocator cpu_;
  PackedAllocator disk_;
  AnyBuf dest_;
  AnyBuf want_;
  AnyBuf file_;
};

absl::StatusOr<double> OverBestRaw(bool cold) {
  absl::StatusOr<std::unique_ptr<DiskBench>> made = DiskBench::Make();
  if (!made.ok()) return made.status();
  const DiskBench& bench = **made;
  RawReader best;
  double best_seconds = 0;
  for (const RawReader& reader : RawReaders()) {
    std::vector<double> times;
    for (int i = 0; i < 3; ++i) {
      absl::StatusOr<double> seconds =
          bench.Time(cold, [&] { return reader.read(bench.path(), bench.dest(), kFileBytes); });
      if (!seconds.ok()) return seconds.status();
      times.push_back(*seconds);
    }
    const double median = Median(times);
    if (median > 0 && (best_seconds == 0 || median < best_seconds)) {
      best_seconds = median;
      best = reader;
    }
  }
  absl::Status failed;
  const auto timed = [&](const std::function<bool()>& read) {
    absl::StatusOr<double> seconds = bench.Time(cold, read);
    if (!seconds.ok()) failed = seconds.status();
    return seconds.ok() ? *seconds : 1.0;
  };
  const DiskExtent& extent = *bench.file().get<DiskExtent>();
  const double ratio = MedianRatioOfTimes(
      {.rounds = kRounds},
      [&] { return timed([&] { return bench.cpu().copy_from_disk(bench.dest_buffer(), extent, kFileBytes).ok(); }); },
      [&] { return timed([&] { return best.read(bench.path(), bench.dest(), kFileBytes); }); });
  if (!failed.ok()) return failed;
  return ratio;
}

// Sizes from 4 KiB to 64 MiB, evenly spread in their logarithm, scaled down to fit the file.
std::vector<std::size_t> ManySizes() {
  std::mt19937 random(2);
  std::uniform_real_distribution<double> exponent(12, 26);
  std::vector<std::size_t> sizes;
  std::size_t total = 0;
  while (sizes.size() < 500) {
    const auto size = static_cast<std::size_t>(std::exp2(exponent(random))) & ~std::size_t{7};
    if (total + size + (500 - sizes.size()) * 8192 > kFileBytes) continue;
    sizes.push_back(size);
    total += size;
  }
  return sizes;
}

}  // namespace

Bar DiskColdOverBestRaw() {
  return {"disk_cold_over_best_raw", "copy_from_disk of 1 GiB that is not cached over the fastest raw reader", 1.05,
          Bar::Kind::kAtMost, [] { return OverBestRaw(true); }};
}

Bar DiskWarmOverBestRaw() {
  return {"disk_warm_over_best_raw", "copy_from_disk of 1 GiB from the page cache over the fastest raw reader", 1.05,
          Bar::Kind::kAtMost, [] { return OverBestRaw(false); }};
}

Bar DiskManyOverOne() {
  return {"disk_many_over_one", "500 tensors of 4 KiB to 64 MiB by CopyAll over one read of as many bytes, not cached",
          1.15, Bar::Kind::kAtMost, []() -> absl::StatusOr<double> {
            absl::StatusOr<std::unique_ptr<DiskBench>> made = DiskBench::Make();
            if (!made.ok()) return made.status();
            const DiskBench& bench = **made;
            std::vector<CopyPair> pairs;
            std::size_t at = 0;
            for (const std::size_t size : ManySizes()) {
              absl::StatusOr<AnyBuf> dest = bench.cpu().offset(bench.dest_buffer(), size, at);
              absl::StatusOr<AnyBuf> src = bench.disk().offset(bench.file(), size, at);
              if (!dest.ok()) return dest.status();
              if (!src.ok()) return src.status();
              pairs.push_back({{bench.cpu(), *dest}, {bench.disk(), *src}});
              at += size;
            }
            const std::size_t total = at;
            const DiskExtent& extent = *bench.file().get<DiskExtent>();
            absl::Status failed;
            const auto timed = [&](const std::function<absl::Status()>& read) {
              failed.Update(bench.Prepare(true));
              std::memset(bench.dest(), 1, total);
              const double seconds = WallSeconds([&] { failed.Update(read()); });
              if (std::memcmp(bench.dest(), bench.want(), total) != 0)
                failed.Update(absl::InternalError("other bytes"));
              return seconds;
            };
            const double ratio = MedianRatioOfTimes(
                {.rounds = kRounds}, [&] { return timed([&] { return CopyAll(pairs).status(); }); },
                [&] { return timed([&] { return bench.cpu().copy_from_disk(bench.dest_buffer(), extent, total); }); });
            if (!failed.ok()) return failed;
            return ratio;
          }};
}

Bar DiskToOpenClOverCpu() {
  return {"disk_to_opencl_over_cpu", "copy_from_disk of 1 GiB, not cached, to OpenCL over the same to CPU memory", 1.25,
          Bar::Kind::kAtMost, []() -> absl::StatusOr<double> {
            absl::StatusOr<PackedAllocator> cl = Open("CL");
            if (!cl.ok()) return cl.status();
            absl::StatusOr<std::unique_ptr<DiskBench>> made = DiskBench::Make();
            if (!made.ok()) return made.status();
            const DiskBench& bench = **made;
            absl::StatusOr<AnyBuf> buf = cl->alloc(kFileBytes);
            if (!buf.ok()) return buf.status();
            const DiskExtent& extent = *bench.file().get<DiskExtent>();
            absl::Status failed = cl->copy_from_disk(*buf, extent, kFileBytes);  // touches it
            const auto timed = [&](const PackedAllocator& device, const AnyBuf& dest) {
              failed.Update(bench.Prepare(true));
              return WallSeconds([&] {
                failed.Update(device.copy_from_disk(dest, extent, kFileBytes));
                failed.Update(device.synchronize());
              });
            };
            const double ratio = MedianRatioOfTimes(
                {.rounds = kRounds}, [&] { return timed(*cl, *buf); },
                [&] { return timed(bench.cpu(), bench.dest_buffer()); });
            if (failed.ok()) failed = cl->copyout({bench.dest(), kFileBytes}, *buf);
            if (failed.ok() && std::memcmp(bench.dest(), bench.want(), kFileBytes) != 0) {
              failed = absl::InternalError("other bytes came to OpenCL");
            }
            failed.Update(cl->free(*buf, kFileBytes));
            if (!failed.ok()) return failed;
            return ratio;
          }};
}

}  // namespace packalloc::bench
