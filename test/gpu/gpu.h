// What the sections of gpu_test share: its results, a few driver calls that the backend itself has no use for, and a
// kernel. The program prints Markdown, as docs/gpu.md takes it.
#ifndef PACKALLOC_TEST_GPU_GPU_H_
#define PACKALLOC_TEST_GPU_GPU_H_

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "backends/cuda/context.h"
#include "backends/cuda/driver.h"
#include "packalloc/allocator.h"
#include "packalloc/backends/cuda.h"

namespace gpu {

// One section's results. A failed check is printed at once and counted.
class Results {
 public:
  void Check(bool ok, absl::string_view what);
  // OK, or a failed check with the status; whether it was OK.
  bool Ok(const absl::Status& status, absl::string_view what);
  template <typename T>
  bool Ok(const absl::StatusOr<T>& value, absl::string_view what) {
    return Ok(value.status(), what);
  }
  void Code(const absl::Status& status, absl::StatusCode code, absl::string_view what);
  // What could not be tried on this machine.
  void Skip(absl::string_view what, absl::string_view why);

  int passed = 0;
  int failed = 0;
  int skipped = 0;
};

struct Settings {
  int device = 0;
  std::size_t max_bytes = std::size_t{8} << 30;  // of the largest copy
  double seconds = 0.3;                          // of each measurement
};

// The functions of the driver that only this program uses. Null where the driver lacks one.
struct Extra {
  decltype(&::cuModuleLoadData) load = nullptr;
  decltype(&::cuModuleUnload) unload = nullptr;
  decltype(&::cuModuleGetFunction) function = nullptr;
  decltype(&::cuLaunchKernel) launch = nullptr;
  decltype(&::cuStreamBeginCapture_v2) begin_capture = nullptr;
  decltype(&::cuStreamEndCapture) end_capture = nullptr;
  decltype(&::cuGraphInstantiateWithFlags) instantiate = nullptr;
  decltype(&::cuGraphLaunch) launch_graph = nullptr;
  decltype(&::cuGraphExecDestroy) destroy_exec = nullptr;
  decltype(&::cuGraphDestroy) destroy_graph = nullptr;
  decltype(&::cuMemcpyHtoD_v2) copy_in = nullptr;
  decltype(&::cuMemcpyDtoH_v2) copy_out = nullptr;

  bool kernels() const { return load != nullptr && unload != nullptr && function != nullptr && launch != nullptr; }
  bool graphs() const {
    return begin_capture != nullptr && end_capture != nullptr && instantiate != nullptr && launch_graph != nullptr &&
           destroy_exec != nullptr && destroy_graph != nullptr;
  }
};
Extra LoadExtra();

// A record with its context pushed, for calls to the driver beside it.
class Device {
 public:
  static absl::StatusOr<Device> Open(const packalloc::CudaOptions& options);
  const packalloc::Allocator<packalloc::CudaBuf>& record() const { return record_; }
  const packalloc::Allocator<packalloc::CudaBuf>* operator->() const { return &record_; }
  const packalloc::internal::CudaDriver& driver() const { return *driver_; }
  CUcontext context() const { return native_->context(); }
  CUstream stream() const { return native_->stream(); }
  packalloc::CudaStats stats() const { return native_->stats(); }

 private:
  packalloc::Allocator<packalloc::CudaBuf> record_;
  std::shared_ptr<packalloc::CudaNative> native_;
  const packalloc::internal::CudaDriver* driver_ = nullptr;
};

// Makes a device's context current for a scope.
class Current {
 public:
  explicit Current(const Device& device) : driver_(device.driver()) {
    driver_.Call(driver_.cuCtxPushCurrent_v2, device.context());
  }
  ~Current() {
    CUcontext popped = nullptr;
    driver_.Call(driver_.cuCtxPopCurrent_v2, &popped);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  const packalloc::internal::CudaDriver& driver_;
};

// A kernel that adds `amount` to each of n 32-bit words, after about `spin` clock ticks of delay.
class AddKernel {
 public:
  static absl::StatusOr<AddKernel> Load(const Device& device, const Extra& extra);
  CUresult Launch(const Device& device, CUdeviceptr words, std::uint32_t n, std::uint32_t amount,
                  std::uint32_t spin = 0) const;
  void Unload(const Device& device);

 private:
  Extra extra_;
  CUmodule module_ = nullptr;
  CUfunction function_ = nullptr;
};

std::vector<std::byte> Pattern(std::size_t nbytes, std::uint32_t seed);
absl::Span<const std::byte> AsBytes(const std::vector<std::uint32_t>& words);
absl::Span<std::byte> AsBytes(std::vector<std::uint32_t>& words);
std::string Size(std::size_t nbytes);  // "64 KiB"

// The sections.
void Describe(const Settings& settings, Results& results);
void Contract(const Settings& settings, Results& results);
void Bandwidth(const Settings& settings, Results& results);
void Pinning(const Settings& settings, Results& results);
void Exhaustion(const Settings& settings, Results& results);
void StreamOrder(const Settings& settings, Results& results);
void GraphCapture(const Settings& settings, Results& results);
void Threads(const Settings& settings, Results& results);
void TwoDevices(const Settings& settings, Results& results);

}  // namespace gpu

#endif  // PACKALLOC_TEST_GPU_GPU_H_
