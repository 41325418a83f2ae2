// Device names: one that is accepted is written in one way, and that way is read as the same name.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "lib/registry/device_name.h"
#include "lib/registry/layer_table.h"
#include "packalloc/backends/null.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<packalloc::DeviceName> name = packalloc::ParseDeviceName(text);
  const absl::StatusOr<std::vector<packalloc::LayerName>> layers = packalloc::ParseLayers(text);
  if (name.ok()) {
    const std::string written = packalloc::ToString(*name);
    const absl::StatusOr<packalloc::DeviceName> again = packalloc::ParseDeviceName(written);
    if (!again.ok() || !(*again == *name) || packalloc::ToString(*again) != written) std::abort();
    if (!packalloc::IsBackendName(name->backend)) std::abort();
  } else if (name.status().message().empty()) {
    std::abort();
  }
  if (!layers.ok()) return 0;
  // Those that write no file and open no other device, with whatever parameters.
  for (const packalloc::LayerName& layer : *layers) {
    if (layer.name == "traced" || layer.name == "fallback") return 0;
  }
  if (layers->size() > 20) return 0;
  const auto device = packalloc::ApplyLayers(*packalloc::Pack(packalloc::NullAllocator()), *layers);
  if (device.ok() != static_cast<bool>(device.ok() && *device)) std::abort();
  return 0;
}
