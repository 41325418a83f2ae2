#include "lib/registry/layer_table.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/parse.h"
#include "lib/registry/parameters.h"
#include "packalloc/layers/lru.h"

namespace packalloc {
namespace {

absl::StatusOr<PackedAllocator> OpenLru(const PackedAllocator& inner, Parameters& parameters) {
  LruOptions options;
  options.max_bytes = parameters.Bytes("max_bytes", options.max_bytes);
  options.policy = parameters.Choice("policy", options.policy,
                                     {{"lru", EvictionPolicy::kLru}, {"gds", EvictionPolicy::kGreedyDualSize}});
  options.max_waste = parameters.Number("max_waste", options.max_waste);
  if (absl::Status read = parameters.Finish(); !read.ok()) return read;
  return Lru(inner, options);
}

struct Layer {
  const char* name;
  absl::StatusOr<PackedAllocator> (*open)(const PackedAllocator& inner, Parameters& parameters);
};
constexpr Layer kLayers[] = {
    {"lru", &OpenLru},
};

const Layer* FindLayer(const std::string& name) {
  const Layer* found =
      std::find_if(std::begin(kLayers), std::end(kLayers), [&](const Layer& l) { return l.name == name; });
  return found == std::end(kLayers) ? nullptr : found;
}

}  // namespace

std::vector<std::string> LayerNames() {
  std::vector<std::string> names;
  for (const Layer& layer : kLayers) names.emplace_back(layer.name);
  return names;
}

absl::Status CheckLayers(const std::vector<LayerName>& layers) {
  for (const LayerName& layer : layers) {
    if (FindLayer(layer.name) == nullptr) {
      return absl::NotFoundError(
          absl::StrCat("there is no layer ", Quoted(layer.name), "; known: ", absl::StrJoin(LayerNames(), ", ")));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<PackedAllocator> ApplyLayers(PackedAllocator device, const std::vector<LayerName>& layers) {
  if (absl::Status known = CheckLayers(layers); !known.ok()) return known;
  for (const LayerName& layer : layers) {
    Parameters parameters(layer);
    absl::StatusOr<PackedAllocator> layered = FindLayer(layer.name)->open(device, parameters);
    // Again, for a layer that has forgotten to: no parameter is silently ignored.
    if (absl::Status read = parameters.Finish(); !read.ok()) return read;
    if (!layered.ok()) return layered.status();
    device = *std::move(layered);
  }
  return device;
}

}  // namespace packalloc
