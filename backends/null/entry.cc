#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/open_request.h"
#include "packalloc/backend.h"
#include "packalloc/backends/null.h"

namespace packalloc::internal {

Backend NullBackend() {
  Backend backend;
  backend.name = "NULL";
  backend.canonical_target = [](const std::string& target) { return OnlyDevice(target, "NULL"); };
  backend.open = [](const OpenRequest& request) -> absl::StatusOr<PackedAllocator> {
    if (auto target = OnlyDevice(request.target, "NULL"); !target.ok()) return target.status();
    absl::StatusOr<NullOptions> options = OptionsOf<NullOptions>(request, "NULL");
    if (!options.ok()) return options.status();
    return Pack(NullAllocator(*options));
  };
  backend.devices = [] {
    DeviceInfo device;
    device.name = "NULL";
    device.description = "addresses without memory, for measuring";
    return std::vector<DeviceInfo>{device};
  };
  return backend;
}

}  // namespace packalloc::internal
