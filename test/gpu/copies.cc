// Bandwidths of this library's copies, each beside the driver's own call in the same run.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "test/gpu/gpu.h"

namespace gpu {
namespace {

using Clock = std::chrono::steady_clock;

// GB/s of `copy` (complete on return) on so many bytes: the median of as many runs as fit the time, at least three.
double Rate(const Settings& settings, std::size_t nbytes, const std::function<bool()>& copy) {
  if (!copy()) return 0;  // the first is not counted
  std::vector<double> seconds;
  const Clock::time_point start = Clock::now();
  while (seconds.size() < 3 || std::chrono::duration<double>(Clock::now() - start).count() < settings.seconds) {
    const Clock::time_point before = Clock::now();
    if (!copy()) return 0;
    seconds.push_back(std::chrono::duration<double>(Clock::now() - before).count());
  }
  std::nth_element(seconds.begin(), seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2), seconds.end());
  return static_cast<double>(nbytes) / seconds[seconds.size() / 2] / 1e9;
}

std::string Cell(double ours, double raw) {
  if (raw <= 0) return absl::StrFormat(" %.2f |", ours);
  return absl::StrFormat(" %.2f | %.2f | %.2fx |", ours, raw, ours / raw);
}

void OneSize(const Settings& settings, Results& results, const Device& device, const Extra& extra, std::size_t nbytes) {
  const packalloc::internal::CudaDriver& driver = device.driver();
  std::vector<std::byte> in = Pattern(nbytes, static_cast<std::uint32_t>(nbytes));
  std::vector<std::byte> out(nbytes);
  absl::StatusOr<packalloc::CudaBuf> a = device->alloc(nbytes, {});
  if (!results.Ok(a, absl::StrCat("alloc of ", nbytes))) return;
  absl::StatusOr<packalloc::CudaBuf> b = device->alloc(nbytes, {});
  if (results.Ok(b, absl::StrCat("alloc of a second ", nbytes))) {
    const Current current(device);
    const auto synced = [&] { return driver.Call(driver.cuStreamSynchronize, device.stream()) == CUDA_SUCCESS; };
    const double in_ours = Rate(settings, nbytes, [&] { return device->copyin(*a, in).ok() && synced(); });
    const double in_raw =
        Rate(settings, nbytes, [&] { return extra.copy_in(a->ptr, in.data(), nbytes) == CUDA_SUCCESS && synced(); });
    const double out_ours = Rate(settings, nbytes, [&] { return device->copyout(absl::MakeSpan(out), *a).ok(); });
    const double out_raw =
        Rate(settings, nbytes, [&] { return extra.copy_out(out.data(), a->ptr, nbytes) == CUDA_SUCCESS; });
    const double move_ours = Rate(settings, nbytes, [&] { return device->transfer(*b, *a, nbytes).ok() && synced(); });
    const double move_raw = Rate(settings, nbytes, [&] {
      return driver.Call(driver.cuMemcpyDtoDAsync_v2, b->ptr, a->ptr, nbytes, device.stream()) == CUDA_SUCCESS &&
             synced();
    });
    std::printf("| %s |%s%s%s\n", Size(nbytes).c_str(), Cell(in_ours, in_raw).c_str(), Cell(out_ours, out_raw).c_str(),
                Cell(move_ours, move_raw).c_str());
    std::fill(out.begin(), out.end(), std::byte{0});
    results.Ok(device->copyin(*a, in), "copyin");
    results.Ok(device->transfer(*b, *a, nbytes), "transfer");
    results.Ok(device->copyout(absl::MakeSpan(out), *b), "copyout");
    results.Check(out == in, absl::StrCat(Size(nbytes), " there and back are other bytes"));
    results.Ok(device->free(*b, nbytes, {}), "free");
  }
  results.Ok(device->free(*a, nbytes, {}), "free");
}

}  // namespace

void Bandwidth(const Settings& settings, Results& results) {
  absl::StatusOr<Device> device = Device::Open({.device = settings.device});
  if (!results.Ok(device, "open")) return;
  const Extra extra = LoadExtra();
  if (extra.copy_in == nullptr || extra.copy_out == nullptr) {
    return results.Skip("the driver's own copies", "this driver has no cuMemcpyHtoD_v2");
  }
  absl::StatusOr<packalloc::MemoryInfo> memory = (*device)->memory_info();
  if (!results.Ok(memory, "memory_info")) return;
  std::printf("GB/s, medians, from and to pageable host memory (the driver by cuMemcpyHtoD and cuMemcpyDtoH).\n\n");
  std::printf("| size | copyin | driver | | copyout | driver | | transfer | driver | |\n");
  std::printf("|---|---|---|---|---|---|---|---|---|---|\n");
  for (std::size_t nbytes = 1024; nbytes <= std::size_t{8} << 30; nbytes *= 8) {
    // 1 KiB, 8 KiB, ... 4 GiB, and then 8 GiB.
    if (nbytes > settings.max_bytes || nbytes > memory->free_bytes / 3) {
      results.Skip(absl::StrCat("copies of ", Size(nbytes)), "--max-bytes, or the device's memory");
      return;
    }
    OneSize(settings, results, *device, extra, nbytes);
    if (nbytes == std::size_t{4} << 30) nbytes = std::size_t{1} << 30;
  }
}

void Pinning(const Settings& settings, Results& results) {
  const std::size_t nbytes = std::min<std::size_t>(settings.max_bytes, std::size_t{256} << 20);
  const std::vector<std::byte> in = Pattern(nbytes, 5);
  std::printf("GB/s of %s into device memory.\n\n| way | GB/s |\n|---|---|\n", Size(nbytes).c_str());
  for (const bool pinned : {true, false}) {
    absl::StatusOr<Device> device = Device::Open({.device = settings.device, .pinned_staging = pinned});
    if (!results.Ok(device, "open")) return;
    absl::StatusOr<packalloc::CudaBuf> buf = (*device)->alloc(nbytes, {});
    if (!results.Ok(buf, "alloc")) return;
    const double rate =
        Rate(settings, nbytes, [&] { return (*device)->copyin(*buf, in).ok() && (*device)->synchronize().ok(); });
    const packalloc::CudaStats stats = device->stats();
    results.Check(stats.staging_is_pinned == pinned, "CudaStats::staging_is_pinned is not what was asked for");
    std::printf("| copyin, %s | %.2f |\n",
                pinned ? absl::StrCat("through ", stats.staging_slots, " pinned slots of ",
                                      Size(stats.staging_slots == 0 ? 0 : stats.staging_bytes / stats.staging_slots))
                             .c_str()
                       : "straight from pageable memory",
                rate);
    if (pinned) {
      absl::StatusOr<packalloc::CudaBuf> host = (*device)->alloc(nbytes, {.host = true});
      if (results.Ok(host, "alloc of pinned memory")) {
        results.Ok((*device)->copyin(*host, in), "copyin to pinned memory");
        const double direct = Rate(settings, nbytes, [&] {
          return (*device)->transfer(*buf, *host, nbytes).ok() && (*device)->synchronize().ok();
        });
        std::printf("| transfer from a pinned buffer | %.2f |\n", direct);
        results.Ok((*device)->free(*host, nbytes, {.host = true}), "free of pinned memory");
      }
    }
    std::vector<std::byte> out(nbytes);
    results.Ok((*device)->copyout(absl::MakeSpan(out), *buf), "copyout");
    results.Check(out == in, "the bytes differ");
    results.Ok((*device)->free(*buf, nbytes, {}), "free");
  }
}

}  // namespace gpu
