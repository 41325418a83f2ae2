// The OpenCL backend as the registry knows it.
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "backends/opencl/api.h"
#include "backends/opencl/devices.h"
#include "lib/open_request.h"
#include "lib/parse.h"
#include "packalloc/backend.h"
#include "packalloc/backends/opencl.h"
#include "packalloc/packed_allocator.h"

namespace packalloc::internal {
namespace {

absl::StatusOr<std::vector<opencl::Device>> List() {
  absl::StatusOr<const opencl::Api*> cl = opencl::LoadApi();
  if (!cl.ok()) return cl.status();
  return opencl::ListDevices(**cl);
}

absl::StatusOr<PackedAllocator> OpenByName(const OpenRequest& request) {
  absl::StatusOr<OpenClOptions> options = OptionsOf<OpenClOptions>(request, "CL");
  if (!options.ok()) return options.status();
  if (!request.target.empty()) {
    if (!options->device.empty() && options->device != request.target) {
      return absl::InvalidArgumentError(absl::StrCat("the name asks for device ", Quoted(request.target),
                                                     ", OpenClOptions::device for ", Quoted(options->device)));
    }
    options->device = request.target;
  }
  absl::StatusOr<Allocator<OpenClBuf>> record = OpenClAllocator(*options);
  if (!record.ok()) return record.status();
  return Pack(*std::move(record));
}

std::vector<DeviceInfo> Infos() {
  std::vector<DeviceInfo> infos;
  const absl::StatusOr<std::vector<opencl::Device>> devices = List();
  if (!devices.ok()) {
    DeviceInfo& none = infos.emplace_back();
    none.name = "CL";
    none.available = false;
    none.reason = std::string(devices.status().message());
    return infos;
  }
  for (const opencl::Device& device : *devices) {
    DeviceInfo info;
    info.name = absl::StrCat("CL:", infos.size());
    info.description = device.name;
    // No DeviceInfo::memory: OpenCL cannot tell how much is free.
    info.properties = {{"platform", device.platform_name},
                       {"version", device.version},
                       {"memory", absl::StrCat(device.memory_bytes, " bytes")},
                       {"alignment", absl::StrCat(device.alignment, " bytes")},
                       {"maximum allocation", absl::StrCat(device.max_alloc_bytes, " bytes")}};
    infos.push_back(std::move(info));
  }
  return infos;
}

absl::StatusOr<std::string> CanonicalTarget(const std::string& target) {
  absl::StatusOr<std::vector<opencl::Device>> devices = List();
  if (!devices.ok()) return devices.status();
  absl::StatusOr<std::size_t> index = opencl::ChooseDevice(*devices, target);
  if (!index.ok()) return index.status();
  return absl::StrCat(*index);
}

}  // namespace

Backend OpenClBackend() {
  Backend backend;
  backend.name = "CL";
  backend.open = OpenByName;
  backend.devices = Infos;
  backend.canonical_target = CanonicalTarget;
  backend.default_rank = 20;
  return backend;
}

}  // namespace packalloc::internal
