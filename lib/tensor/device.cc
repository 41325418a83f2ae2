#include "packalloc/tensor/device.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace packalloc {
namespace {

absl::string_view TypeName(std::int32_t type) {
  switch (type) {
    case DlDevice::kCpu:
      return "CPU";
    case DlDevice::kCuda:
      return "CUDA";
    case DlDevice::kCudaHost:
      return "CUDA host";
    case DlDevice::kOpenCl:
      return "OpenCL";
    case DlDevice::kVulkan:
      return "Vulkan";
    case DlDevice::kMetal:
      return "Metal";
    case DlDevice::kVpi:
      return "VPI";
    case DlDevice::kRocm:
      return "ROCm";
    case DlDevice::kRocmHost:
      return "ROCm host";
    case DlDevice::kExtDev:
      return "extension device";
    case DlDevice::kCudaManaged:
      return "CUDA managed";
    case DlDevice::kOneApi:
      return "oneAPI";
    case DlDevice::kWebGpu:
      return "WebGPU";
    case DlDevice::kHexagon:
      return "Hexagon";
    case DlDevice::kMaia:
      return "MAIA";
    case DlDevice::kTrn:
      return "Trainium";
    default:
      return "";
  }
}

}  // namespace

std::string ToString(DlDevice device) {
  const absl::string_view name = TypeName(device.type);
  return name.empty() ? absl::StrCat("device type ", device.type, ":", device.id) : absl::StrCat(name, ":", device.id);
}

absl::StatusOr<DlDevice> DlDeviceOf(const PackedAllocator& allocator, const BufferSpec& spec) {
  const absl::string_view full = allocator.name();
  const absl::string_view name = full.substr(0, full.find('+'));
  const absl::string_view backend = name.substr(0, name.find(':'));
  int index = 0;
  const bool has_index =
      backend.size() == name.size() || (absl::SimpleAtoi(name.substr(backend.size() + 1), &index) && index >= 0);
  if (has_index) {
    if (backend == "CPU") return DlDevice{DlDevice::kCpu, 0};
    if (backend == "CUDA") return spec.host ? DlDevice{DlDevice::kCudaHost, 0} : DlDevice{DlDevice::kCuda, index};
    if (backend == "CL") return DlDevice{DlDevice::kOpenCl, index};
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", full, "\" is not a device that DLPack knows; say which DlDevice its memory is to be described as"));
}

}  // namespace packalloc
