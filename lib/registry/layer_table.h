// The layers that a device name can ask for: "+lru:max_bytes=64MiB". A new layer is one function and one line in
// layer_table.cc.
#ifndef PACKALLOC_LIB_REGISTRY_LAYER_TABLE_H_
#define PACKALLOC_LIB_REGISTRY_LAYER_TABLE_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/registry/device_name.h"
#include "packalloc/packed_allocator.h"

namespace packalloc {

// What a name may have: each layer is a call more on the way to the device, and opening costs the square of their
// number.
inline constexpr std::size_t kMostLayers = 32;

// OK where every layer of the list is known, else NOT_FOUND naming it and those that are; INVALID_ARGUMENT for more
// than kMostLayers.
absl::Status CheckLayers(const std::vector<LayerName>& layers);

// `device` with the layers on it, the first innermost. INVALID_ARGUMENT naming layer and parameter, and
// as CheckLayers; else what a layer answers. Thread-safe.
absl::StatusOr<PackedAllocator> ApplyLayers(PackedAllocator device, const std::vector<LayerName>& layers);

// The names of all layers, in the order of the table.
std::vector<std::string> LayerNames();

}  // namespace packalloc

#endif  // PACKALLOC_LIB_REGISTRY_LAYER_TABLE_H_
