#include <any>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "lib/open_request.h"
#include "packalloc/backend.h"
#include "packalloc/backends/mock.h"
#include "packalloc/packed_allocator.h"

namespace packalloc::internal {
namespace {

// "" and "0" are the same mock; further digits name further ones.
absl::StatusOr<std::string> CanonicalTarget(const std::string& target) {
  if (target.empty() || target == "0") return std::string();
  const bool number =
      target.size() <= 4 && target.front() != '0' && target.find_first_not_of("0123456789") == std::string::npos;
  if (!number) {
    return absl::InvalidArgumentError(
        absl::StrCat("MOCK:", target, ": a mock is named by a number from 0 to 9999, as in MOCK:1"));
  }
  return target;
}

absl::StatusOr<PackedAllocator> Open(const OpenRequest& request) {
  absl::StatusOr<std::string> target = CanonicalTarget(request.target);
  if (!target.ok()) return target.status();
  absl::StatusOr<MockOptions> options = OptionsOf<MockOptions>(request, "MOCK");
  if (!options.ok()) return options.status();
  if (!request.options.has_value() && !target->empty()) options->name = absl::StrCat("MOCK:", *target);
  return Pack(MockAllocator(*std::move(options)));
}

}  // namespace

Backend MockBackend() {
  Backend backend;
  backend.name = "MOCK";
  backend.open = Open;
  backend.devices = [] {
    DeviceInfo device;
    device.name = "MOCK";
    device.description = "a device for tests, in this process's memory";
    return std::vector<DeviceInfo>{device};
  };
  backend.canonical_target = CanonicalTarget;
  return backend;
}

}  // namespace packalloc::internal
