#include "lib/registry/layer_table.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <limits>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/parse.h"
#include "lib/registry/parameters.h"
#include "packalloc/layers/checked.h"
#include "packalloc/layers/counted.h"
#include "packalloc/layers/failing.h"
#include "packalloc/layers/fallback.h"
#include "packalloc/layers/limited.h"
#include "packalloc/layers/lru.h"
#include "packalloc/layers/traced.h"
#include "packalloc/registry.h"

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

absl::StatusOr<PackedAllocator> OpenChecked(const PackedAllocator& inner, Parameters& parameters) {
  CheckedOptions options;
  options.guard_bytes = parameters.Bytes("guard_bytes", options.guard_bytes);
  options.poison = parameters.Flag("poison", options.poison);
  options.stack_depth = parameters.Count("stack_depth", options.stack_depth);
  options.history = parameters.Count("history", options.history);
  options.abort_on_fault = parameters.Flag("abort", options.abort_on_fault);
  if (absl::Status read = parameters.Finish(); !read.ok()) return read;
  return Checked(inner, options);
}

absl::StatusOr<PackedAllocator> OpenTraced(const PackedAllocator& inner, Parameters& parameters) {
  TracedOptions options;
  options.file = parameters.Text("file", "");
  options.block_bytes = parameters.Bytes("block_bytes", options.block_bytes);
  if (absl::Status read = parameters.Finish(); !read.ok()) return read;
  return Traced(inner, options);
}

absl::StatusOr<PackedAllocator> OpenLimited(const PackedAllocator& inner, Parameters& parameters) {
  constexpr std::uint64_t kUnset = std::numeric_limits<std::uint64_t>::max();
  const std::uint64_t max_bytes = parameters.Bytes("max_bytes", kUnset);
  if (max_bytes == kUnset) parameters.Refuse("max_bytes", "is missing: how many bytes are allowed at a time?");
  if (absl::Status read = parameters.Finish(); !read.ok()) return read;
  return Limited(inner, max_bytes);
}

absl::StatusOr<PackedAllocator> OpenCounted(const PackedAllocator& inner, Parameters& parameters) {
  const CountedOptions options{.by_thread = parameters.Flag("by_thread", false)};
  if (absl::Status read = parameters.Finish(); !read.ok()) return read;
  return Counted(inner, options);
}

absl::StatusOr<PackedAllocator> OpenFallback(const PackedAllocator& inner, Parameters& parameters) {
  const std::string to = parameters.Text("to", "");
  if (to.empty()) parameters.Refuse("to", "is missing: which device is asked where this one is exhausted?");
  if (absl::Status read = parameters.Finish(); !read.ok()) return read;
  absl::StatusOr<PackedAllocator> second = Open(to);
  if (!second.ok()) return second;
  return Fallback(inner, *second);
}

absl::StatusOr<PackedAllocator> OpenFailing(const PackedAllocator& inner, Parameters& parameters) {
  FailureRule rule;
  if (const std::string name = parameters.Text("member", ""); !name.empty()) {
    for (std::size_t i = 0; i < kMembers; ++i) {
      if (ToString(static_cast<Member>(i)) == name) rule.member = static_cast<Member>(i);
    }
    if (!rule.member) parameters.Refuse("member", absl::StrCat(Quoted(name), " is no member of a record"));
  }
  rule.nth = parameters.Count("nth", 0);
  rule.every = parameters.Count("every", 0);
  rule.probability = parameters.Number("probability", 0);
  rule.seed = parameters.Count("seed", 0);
  const std::string code = parameters.Text("code", "RESOURCE_EXHAUSTED");
  bool known = false;
  for (int i = 1; i <= static_cast<int>(absl::StatusCode::kUnauthenticated); ++i) {
    if (absl::StatusCodeToString(static_cast<absl::StatusCode>(i)) != code) continue;
    rule.status = absl::Status(static_cast<absl::StatusCode>(i), rule.status.message());
    known = true;
  }
  if (!known) parameters.Refuse("code", absl::StrCat(Quoted(code), " is no status code"));
  if (parameters.Flag("throw", false)) {
    rule.exception = std::make_exception_ptr(std::runtime_error(std::string(rule.status.message())));
  }
  if (absl::Status read = parameters.Finish(); !read.ok()) return read;
  return Failing(inner, {rule});
}

struct Layer {
  const char* name;
  absl::StatusOr<PackedAllocator> (*open)(const PackedAllocator& inner, Parameters& parameters);
};
constexpr Layer kLayers[] = {
    {"lru", &OpenLru},         {"checked", &OpenChecked},   {"traced", &OpenTraced},   {"limited", &OpenLimited},
    {"counted", &OpenCounted}, {"fallback", &OpenFallback}, {"failing", &OpenFailing},
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
  if (layers.size() > kMostLayers) {
    return absl::InvalidArgumentError(
        absl::StrCat(layers.size(), " layers; at most ", kMostLayers, " can be asked for"));
  }
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
