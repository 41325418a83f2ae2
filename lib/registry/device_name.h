// The text of a device name, taken apart and put together. Knows no backend and no layer.
//
//   absl::StatusOr<DeviceName> name = ParseDeviceName("DISK:\"a+b.bin\"+lru:max_bytes=1MiB");
//   name->target;      // a+b.bin
//   ToString(*name);   // the one spelling of it
#ifndef PACKALLOC_LIB_REGISTRY_DEVICE_NAME_H_
#define PACKALLOC_LIB_REGISTRY_DEVICE_NAME_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace packalloc {

struct LayerName {
  std::string name;
  std::map<std::string, std::string> parameters;
  friend bool operator==(const LayerName&, const LayerName&) = default;
};

struct DeviceName {
  std::string backend;  // in upper case
  std::string target;   // unquoted; "" where none was given
  std::vector<LayerName> layers;
  friend bool operator==(const DeviceName&, const DeviceName&) = default;
};

// INVALID_ARGUMENT quoting the name, what was understood up to the fault, and what was expected there.
absl::StatusOr<DeviceName> ParseDeviceName(absl::string_view text);

// The layers alone: "lru:max_bytes=1MiB+checked", with or without a plus sign in front.
absl::StatusOr<std::vector<LayerName>> ParseLayers(absl::string_view text);

// Whether `name` may name a backend.
bool IsBackendName(absl::string_view name);

// Parsed again it gives an equal value. Quotes where they are needed only; parameters in the order of their names.
std::string ToString(const DeviceName& name);

}  // namespace packalloc

#endif  // PACKALLOC_LIB_REGISTRY_DEVICE_NAME_H_
