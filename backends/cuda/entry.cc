#include <cuda.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "backends/cuda/context.h"
#include "backends/cuda/driver.h"
#include "backends/cuda/error.h"
#include "lib/open_request.h"
#include "lib/parse.h"
#include "packalloc/backend.h"
#include "packalloc/backends/cuda.h"

namespace packalloc::internal {
namespace {

absl::StatusOr<int> OrdinalOf(const std::string& target) {
  int ordinal = 0;
  const bool digits = std::all_of(target.begin(), target.end(), absl::ascii_isdigit);
  if (target.empty() || (digits && absl::SimpleAtoi(target, &ordinal))) return ordinal;
  return absl::InvalidArgumentError(
      absl::StrCat(Quoted(absl::StrCat("CUDA:", target)), " is not a device: CUDA takes the number of one, as CUDA:1"));
}

absl::StatusOr<PackedAllocator> OpenCuda(const OpenRequest& request) {
  absl::StatusOr<int> ordinal = OrdinalOf(request.target);
  if (!ordinal.ok()) return ordinal.status();
  absl::StatusOr<CudaOptions> options = OptionsOf<CudaOptions>(request, "CUDA");
  if (!options.ok()) return options.status();
  if (!request.target.empty()) {
    if (options->device != 0 && options->device != *ordinal) {
      return absl::InvalidArgumentError(
          absl::StrCat("CUDA:", *ordinal, " was opened with CudaOptions of device ", options->device));
    }
    options->device = *ordinal;
  }
  absl::StatusOr<Allocator<CudaBuf>> record = CudaAllocator(*options);
  if (!record.ok()) return record.status();
  return Pack(*std::move(record));
}

std::string Version(int version) { return absl::StrCat(version / 1000, ".", version % 1000 / 10); }

// Starts no context: that takes a good part of a second and device memory.
DeviceInfo Describe(const CudaDriver& driver, int ordinal) {
  DeviceInfo info;
  info.name = absl::StrCat("CUDA:", ordinal);
  CUdevice device = 0;
  if (const CUresult result = driver.Call(driver.cuDeviceGet, &device, ordinal); result != CUDA_SUCCESS) {
    info.available = false;
    info.reason = DescribeCudaError(driver, "cuDeviceGet", result);
    return info;
  }
  char name[256] = {};
  if (driver.Call(driver.cuDeviceGetName, name, static_cast<int>(sizeof name) - 1, device) == CUDA_SUCCESS) {
    info.description = name;
  }
  info.properties.emplace_back("driver", Version(driver.version()));
  const auto ask = [&](CUdevice_attribute attribute, int& value) {
    return driver.Call(driver.cuDeviceGetAttribute, &value, attribute, device) == CUDA_SUCCESS;
  };
  int major = 0;
  int minor = 0;
  if (ask(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, major) &&
      ask(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, minor)) {
    info.properties.emplace_back("compute capability", absl::StrCat(major, ".", minor));
  }
  int managed = 0;
  if (ask(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, managed)) {
    info.properties.emplace_back("managed memory", managed != 0 ? "yes" : "no");
  }
  std::size_t total = 0;
  if (driver.Call(driver.cuDeviceTotalMem_v2, &total, device) == CUDA_SUCCESS) {
    info.properties.emplace_back("memory", absl::StrCat(total >> 20, " MiB"));
  }
  if (const std::shared_ptr<CudaContext> context = CudaContext::Existing(ordinal)) {
    const ScopedContext scope(*context);
    MemoryInfo memory;
    if (scope.status().ok() &&
        driver.Call(driver.cuMemGetInfo_v2, &memory.free_bytes, &memory.total_bytes) == CUDA_SUCCESS) {
      info.memory = memory;
    }
  }
  return info;
}

std::vector<DeviceInfo> CudaDevices() {
  const auto unavailable = [](absl::string_view reason) {
    DeviceInfo none;
    none.name = "CUDA";
    none.available = false;
    none.reason = std::string(reason);
    return std::vector<DeviceInfo>{none};
  };
  absl::StatusOr<const CudaDriver*> driver = CudaDriver::Get();
  if (!driver.ok()) return unavailable(driver.status().message());
  int count = 0;
  if (const CUresult result = (*driver)->Call((*driver)->cuDeviceGetCount, &count); result != CUDA_SUCCESS) {
    return unavailable(DescribeCudaError(**driver, "cuDeviceGetCount", result));
  }
  if (count <= 0) return unavailable("0 CUDA devices");
  std::vector<DeviceInfo> devices;
  devices.reserve(static_cast<std::size_t>(count));
  for (int ordinal = 0; ordinal < count; ++ordinal) devices.push_back(Describe(**driver, ordinal));
  return devices;
}

}  // namespace

Backend CudaBackend() {
  Backend backend;
  backend.name = "CUDA";
  backend.default_rank = 10;
  backend.open = OpenCuda;
  backend.devices = CudaDevices;
  backend.canonical_target = [](const std::string& target) -> absl::StatusOr<std::string> {
    absl::StatusOr<int> ordinal = OrdinalOf(target);
    if (!ordinal.ok()) return ordinal.status();
    return absl::StrCat(*ordinal);
  };
  return backend;
}

}  // namespace packalloc::internal
