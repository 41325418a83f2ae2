#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/open_request.h"
#include "packalloc/backend.h"
#include "packalloc/backends/disk.h"
#include "packalloc/packed_allocator.h"

namespace packalloc::internal {

Backend DiskBackend() {
  Backend disk;
  disk.name = "DISK";
  disk.shared = false;
  disk.open = [](const OpenRequest& request) -> absl::StatusOr<PackedAllocator> {
    if (request.target.empty()) {
      return absl::InvalidArgumentError("DISK needs the path of a file: DISK:/path/to/file");
    }
    absl::StatusOr<DiskOptions> options = OptionsOf<DiskOptions>(request, "DISK");
    if (!options.ok()) return options.status();
    absl::StatusOr<Allocator<DiskExtent>> record = DiskAllocator(request.target, *options);
    if (!record.ok()) return record.status();
    return Pack(*std::move(record));
  };
  disk.devices = [] {
    return std::vector<DeviceInfo>{{.name = "DISK", .description = "any file, as DISK:/path/to/file"}};
  };
  return disk;
}

}  // namespace packalloc::internal
