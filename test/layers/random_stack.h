// A random stack of layers that makes sense, the same again for every record it is put on.
#ifndef PACKALLOC_TEST_LAYERS_RANDOM_STACK_H_
#define PACKALLOC_TEST_LAYERS_RANDOM_STACK_H_

#include <algorithm>
#include <cstddef>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "packalloc/layers/checked.h"
#include "packalloc/layers/counted.h"
#include "packalloc/layers/failing.h"
#include "packalloc/layers/limited.h"
#include "packalloc/layers/lru.h"
#include "packalloc/layers/traced.h"
#include "packalloc/packed_allocator.h"

namespace packalloc::testing {

class RandomStack {
 public:
  // Up to six layers. Traces go to `folder`. No stack has a fault in it: add rules to its FailingControl.
  RandomStack(std::mt19937_64& random, const std::string& folder) {
    const std::size_t layers = random() % 7;
    for (std::size_t i = 0; i < layers; ++i) {
      const std::uint64_t option = random();
      switch (random() % 6) {
        case 0:
          if (Has("checked")) break;
          Add("lru", [option](const PackedAllocator& inner) {
            return Lru(inner, {.max_bytes = option % 3 == 0 ? std::size_t{1} << 16 : std::size_t{1} << 30,
                               .policy = option % 2 == 0 ? EvictionPolicy::kLru : EvictionPolicy::kGreedyDualSize,
                               .max_waste = option % 5 == 0 ? 0.125 : 0});
          });
          break;
        case 1:
          if (Has("checked")) break;
          Add("checked", [option](const PackedAllocator& inner) {
            return Checked(inner, {.guard_bytes = option % 3 * 40, .poison = option % 2 == 0, .stack_depth = 0});
          });
          break;
        case 2: {
          const std::string file = absl::StrCat(folder, "/", i, ".csv");
          Add("traced", [file](const PackedAllocator& inner) { return Traced(inner, {.file = file}); });
          break;
        }
        case 3:
          Add("limited", [](const PackedAllocator& inner) { return Limited(inner, std::size_t{1} << 30); });
          break;
        case 4:
          Add("counted", [](const PackedAllocator& inner) { return Counted(inner, {.by_thread = true}); });
          break;
        default:
          Add("failing", [](const PackedAllocator& inner) { return Failing(inner); });
      }
    }
  }

  absl::StatusOr<PackedAllocator> Over(PackedAllocator device) const {
    for (const Layer& layer : layers_) {
      absl::StatusOr<PackedAllocator> layered = layer.over(device);
      if (!layered.ok()) return layered;
      device = *std::move(layered);
    }
    return device;
  }

  // "+lru+traced", the innermost first.
  const std::string& text() const { return text_; }
  bool Has(const std::string& name) const {
    return std::any_of(layers_.begin(), layers_.end(), [&](const Layer& layer) { return layer.name == name; });
  }

 private:
  struct Layer {
    std::string name;
    std::function<absl::StatusOr<PackedAllocator>(const PackedAllocator&)> over;
  };
  template <typename Over>
  void Add(std::string name, Over over) {
    absl::StrAppend(&text_, "+", name);
    layers_.push_back({std::move(name), std::move(over)});
  }
  std::vector<Layer> layers_;
  std::string text_;
};

}  // namespace packalloc::testing

#endif  // PACKALLOC_TEST_LAYERS_RANDOM_STACK_H_
