#include <any>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "packalloc/backend.h"
#include "packalloc/backends/disk.h"
#include "packalloc/packed_allocator.h"

namespace packalloc::internal {

Backend DiskBackend() {
  Backend disk;
  disk.name = "DISK";
  disk.open = [](const OpenRequest& request) -> absl::StatusOr<PackedAllocator> {
    if (request.target.empty()) {
      return absl::InvalidArgumentError("DISK needs the path of a file: DISK:/path/to/file");
    }
    DiskOptions options;
    if (request.options.has_value()) {
      const auto* given = std::any_cast<DiskOptions>(&request.options);
      if (given == nullptr) return absl::InvalidArgumentError("DISK takes options of type packalloc::DiskOptions");
      options = *given;
    }
    absl::StatusOr<Allocator<DiskExtent>> record = DiskAllocator(request.target, options);
    if (!record.ok()) return record.status();
    return Pack(*std::move(record));
  };
  disk.devices = [] {
    return std::vector<DeviceInfo>{{.name = "DISK", .description = "any file, as DISK:/path/to/file"}};
  };
  return disk;
}

}  // namespace packalloc::internal
