// Backend: what a backend tells the registry of itself, and how it is opened by name. A backend of your own becomes a
// device name with:
//
//   packalloc::Backend mine;
//   mine.name = "MINE";
//   mine.open = [](const packalloc::OpenRequest&) { return packalloc::Pack(MyAllocator()); };
//   mine.devices = [] { return std::vector<packalloc::DeviceInfo>{{.name = "MINE", .description = "my device"}}; };
//   absl::Status registered = packalloc::Register(mine);          // registry.h
//   absl::StatusOr<packalloc::PackedAllocator> device = packalloc::Open("MINE+lru");
#ifndef PACKALLOC_BACKEND_H_
#define PACKALLOC_BACKEND_H_

#include <any>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "packalloc/allocator.h"
#include "packalloc/packed_allocator.h"

namespace packalloc {

// One device, or one reason why a backend has none.
struct DeviceInfo {
  std::string name;  // as Open takes it: "CUDA:1"; the bare backend's name where it has no device
  bool available = true;
  std::string reason{};       // why not, where not available: "no libcuda.so.1"
  std::string description{};  // the device's own name, as its driver tells it
  std::optional<MemoryInfo> memory{};
  std::vector<std::pair<std::string, std::string>> properties{};  // further facts for people: {"driver", "13.0"}
};

// What a backend is asked to open.
struct OpenRequest {
  std::string target{};  // what follows the colon of the device name, unquoted: "" , "1", "/path/to/file"
  std::any options{};    // the backend's own options struct (CudaOptions, ...), or empty
};

// A backend as the registry knows it.
struct Backend {
  std::string name;  // "CUDA": upper-case letters and digits, starting with a letter
  // A new packed allocator. UNAVAILABLE where this machine cannot (no driver), NOT_FOUND for a device that is not
  // there, INVALID_ARGUMENT for a target or options that it does not understand.
  std::function<absl::StatusOr<PackedAllocator>(const OpenRequest&)> open;
  // Never fails: a backend that does not work lists one unavailable device with the reason.
  std::function<std::vector<DeviceInfo>()> devices;
  // The one spelling of a target, so that Open gives the same allocator for all ("" and "0"). Unset: as it is.
  std::function<absl::StatusOr<std::string>(const std::string& target)> canonical_target;
  // Whether Open(name) gives the same allocator each time. False where a name may mean something else by now (a file
  // that was replaced): every Open is then a new one.
  bool shared = true;
  int default_rank = 0;  // Default() tries backends with a rank above 0, smallest first
};

}  // namespace packalloc

#endif  // PACKALLOC_BACKEND_H_
