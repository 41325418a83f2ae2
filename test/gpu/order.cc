// Work of a kernel between copies: the order on a stream, a captured graph, threads, and two devices.
#include <cstdio>
#include <mutex>
#include <thread>

#include "absl/strings/str_cat.h"
#include "packalloc/layers/lru.h"
#include "packalloc/packed_allocator.h"
#include "test/gpu/gpu.h"

namespace gpu {
namespace {

constexpr std::uint32_t kWords = 1 << 20;
constexpr std::size_t kBytes = std::size_t{kWords} * 4;
constexpr std::uint32_t kSpin = 2'000'000;  // about a millisecond

std::vector<std::uint32_t> Count(std::uint32_t from) {
  std::vector<std::uint32_t> words(kWords);
  for (std::uint32_t i = 0; i < kWords; ++i) words[i] = from + i;
  return words;
}

// A device, and the kernel where the driver runs kernels.
struct Lab {
  Device device;
  Extra extra;
  AddKernel kernel;
};

absl::StatusOr<Lab> OpenLab(const Settings& settings, Results& results) {
  Lab lab;
  lab.extra = LoadExtra();
  absl::StatusOr<Device> device = Device::Open({.device = settings.device});
  if (!results.Ok(device, "open")) return device.status();
  lab.device = *device;
  if (!lab.extra.kernels()) {
    results.Skip("kernels", "this driver runs none");
    return absl::UnavailableError("no kernels");
  }
  absl::StatusOr<AddKernel> kernel = AddKernel::Load(lab.device, lab.extra);
  if (!results.Ok(kernel, "loading the kernel")) return kernel.status();
  lab.kernel = *kernel;
  return lab;
}

}  // namespace

void StreamOrder(const Settings& settings, Results& results) {
  absl::StatusOr<Lab> lab = OpenLab(settings, results);
  if (!lab.ok()) return;
  const Device& device = lab->device;
  absl::StatusOr<packalloc::CudaBuf> a = device->alloc(kBytes, {});
  absl::StatusOr<packalloc::CudaBuf> b = device->alloc(kBytes, {});
  if (!results.Ok(a, "alloc") || !results.Ok(b, "alloc")) return;
  std::vector<std::uint32_t> out(kWords);
  for (std::uint32_t round = 0; round < 20; ++round) {
    std::vector<std::uint32_t> in = Count(round);
    // The kernel dawdles, so whatever does not wait for it comes too early.
    results.Ok(device->copyin(*a, AsBytes(in)), "copyin");
    std::fill(in.begin(), in.end(), 0);  // consumed
    results.Check(lab->kernel.Launch(device, a->ptr, kWords, 1, kSpin) == CUDA_SUCCESS, "launch");
    results.Ok(device->transfer(*b, *a, kBytes), "transfer");
    results.Ok(device->copyin(*a, AsBytes(in)), "copyin behind a kernel that uses the buffer");
    results.Check(lab->kernel.Launch(device, b->ptr, kWords, 1, kSpin) == CUDA_SUCCESS, "launch");
    results.Ok(device->copyout(AsBytes(out), *b), "copyout");
    results.Check(out == Count(round + 2), absl::StrCat("round ", round, ": work ran out of order"));
  }
  // free behind a kernel that uses the buffer.
  results.Check(lab->kernel.Launch(device, b->ptr, kWords, 1, kSpin) == CUDA_SUCCESS, "launch");
  results.Ok(device->free(*b, kBytes, {}), "free of a buffer in use");
  // A view at an odd word.
  absl::StatusOr<packalloc::CudaBuf> view = device->offset(*a, kBytes - 12, 12);
  if (results.Ok(view, "offset")) {
    results.Ok(device->copyin(*a, AsBytes(Count(0))), "copyin");
    results.Check(lab->kernel.Launch(device, view->ptr, kWords - 3, 100) == CUDA_SUCCESS, "launch");
    results.Ok(device->copyout(AsBytes(out), *a), "copyout");
    std::vector<std::uint32_t> wanted = Count(0);
    for (std::uint32_t i = 3; i < kWords; ++i) wanted[i] += 100;
    results.Check(out == wanted, "a kernel on a view touched other words");
  }
  results.Ok(device->free(*a, kBytes, {}), "free");
  std::printf(
      "20 rounds of copyin, kernel, transfer, copyin, kernel, copyout, each kernel about a millisecond late.\n");
  lab->kernel.Unload(device);
}

void GraphCapture(const Settings& settings, Results& results) {
  absl::StatusOr<Lab> lab = OpenLab(settings, results);
  if (!lab.ok()) return;
  if (!lab->extra.graphs()) return results.Skip("graphs", "this driver has none");
  const Device& device = lab->device;
  const packalloc::internal::CudaDriver& driver = device.driver();
  absl::StatusOr<packalloc::CudaBuf> a = device->alloc(kBytes, {});
  absl::StatusOr<packalloc::CudaBuf> b = device->alloc(kBytes, {});
  absl::StatusOr<packalloc::CudaBuf> c = device->alloc(kBytes, {});
  if (!results.Ok(a, "alloc") || !results.Ok(b, "alloc") || !results.Ok(c, "alloc")) return;
  std::vector<std::uint32_t> words = Count(7);
  results.Ok(device->copyin(*a, AsBytes(words)), "copyin");
  results.Ok(device->synchronize(), "synchronize");

  const Current current(device);
  CUgraph graph = nullptr;
  results.Check(driver.Call(lab->extra.begin_capture, device.stream(), CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS,
                "cuStreamBeginCapture");
  results.Check(lab->kernel.Launch(device, a->ptr, kWords, 1) == CUDA_SUCCESS, "launch in a capture");
  results.Code(device->copyin(*a, AsBytes(words)), absl::StatusCode::kFailedPrecondition, "copyin in a capture");
  results.Code(device->copyout(AsBytes(words), *a), absl::StatusCode::kFailedPrecondition, "copyout in a capture");
  results.Code(device->alloc(4096, {}).status(), absl::StatusCode::kFailedPrecondition, "alloc in a capture");
  results.Code(device->synchronize(), absl::StatusCode::kFailedPrecondition, "synchronize in a capture");
  results.Ok(device->free(*c, kBytes, {}), "free in a capture");
  results.Check(device.stats().deferred_frees == 1, "free in a capture was not put off");
  results.Ok(device->transfer(*b, *a, kBytes), "transfer in a capture");
  results.Check(driver.Call(lab->extra.end_capture, device.stream(), &graph) == CUDA_SUCCESS && graph != nullptr,
                "cuStreamEndCapture: the capture was broken");
  CUgraphExec executable = nullptr;
  if (graph != nullptr && driver.Call(lab->extra.instantiate, &executable, graph, 0ULL) == CUDA_SUCCESS) {
    for (std::uint32_t round = 1; round <= 10; ++round) {
      results.Check(driver.Call(lab->extra.launch_graph, executable, device.stream()) == CUDA_SUCCESS, "cuGraphLaunch");
      results.Ok(device->copyout(AsBytes(words), *b), "copyout");
      results.Check(words == Count(7 + round), absl::StrCat("launch ", round, " of the graph gave other words"));
    }
    driver.Call(lab->extra.destroy_exec, executable);
  } else {
    results.Check(false, "cuGraphInstantiateWithFlags");
  }
  if (graph != nullptr) driver.Call(lab->extra.destroy_graph, graph);
  results.Ok(device->synchronize(), "synchronize");
  results.Check(device.stats().deferred_frees == 0, "what was put off was not freed after the capture");
  results.Ok(device->free(*a, kBytes, {}), "free");
  results.Ok(device->free(*b, kBytes, {}), "free");
  std::printf("A kernel and a transfer captured, refusals in between, launched 10 times.\n");
  lab->kernel.Unload(device);
}

void Threads(const Settings& settings, Results& results) {
  absl::StatusOr<packalloc::Allocator<packalloc::CudaBuf>> record =
      packalloc::CudaAllocator({.device = settings.device});
  if (!results.Ok(record, "open")) return;
  absl::StatusOr<packalloc::PackedAllocator> packed = packalloc::Pack(*record);
  if (!results.Ok(packed, "pack")) return;
  absl::StatusOr<packalloc::PackedAllocator> cached = packalloc::Lru(*packed);
  if (!results.Ok(cached, "lru")) return;
  std::mutex mutex;
  const auto work = [&](std::uint32_t seed) {
    for (std::uint32_t round = 0; round < 200; ++round) {
      const std::size_t nbytes = (std::size_t{1} << (10 + round % 14)) + seed;
      const std::vector<std::byte> in = Pattern(nbytes, seed * 1000 + round);
      std::vector<std::byte> out(nbytes);
      absl::StatusOr<packalloc::AnyBuf> buf = cached->alloc(nbytes);
      absl::Status status = buf.status();
      if (status.ok()) status = cached->copyin(*buf, in);
      if (status.ok()) status = cached->copyout(absl::MakeSpan(out), *buf);
      if (buf.ok()) status.Update(cached->free(*buf, nbytes));
      const std::lock_guard<std::mutex> lock(mutex);
      results.Ok(status, "a round of a thread");
      results.Check(in == out, "a thread read other bytes than it wrote");
    }
  };
  std::thread one(work, 1);
  std::thread two(work, 2);
  one.join();
  two.join();
  std::printf("2 threads of 200 rounds on one record under LRU, 1 KiB to 8 MiB.\n");
}

void TwoDevices(const Settings& settings, Results& results) {
  absl::StatusOr<Device> one = Device::Open({.device = settings.device});
  if (!results.Ok(one, "open")) return;
  absl::StatusOr<Device> two = Device::Open({.device = settings.device == 0 ? 1 : 0});
  if (!two.ok()) return results.Skip("copies between two devices", two.status().message());
  const std::vector<std::byte> in = Pattern(kBytes, 3);
  std::vector<std::byte> out(kBytes);
  absl::StatusOr<packalloc::CudaBuf> a = (*one)->alloc(kBytes, {});
  absl::StatusOr<packalloc::CudaBuf> b = (*two)->alloc(kBytes, {});
  if (!results.Ok(a, "alloc") || !results.Ok(b, "alloc")) return;
  results.Ok((*one)->copyin(*a, in), "copyin");
  results.Ok((*one)->transfer(*b, *a, kBytes), "transfer to the other device");
  results.Ok((*two)->copyout(absl::MakeSpan(out), *b), "copyout");
  results.Check(in == out, "the bytes differ");
  results.Ok((*one)->free(*a, kBytes, {}), "free");
  results.Ok((*two)->free(*b, kBytes, {}), "free");
}

}  // namespace gpu
