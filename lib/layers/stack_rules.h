// Which layers a record has on it, for layers that refuse to lie over others.
#ifndef PACKALLOC_LIB_LAYERS_STACK_RULES_H_
#define PACKALLOC_LIB_LAYERS_STACK_RULES_H_

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "packalloc/packed_allocator.h"

namespace packalloc {

// The control by which a stack tells its layers, innermost first: "lru", "checked", "fallback", ...
struct StackMark {
  std::vector<std::string> layers;
};

inline bool ContainsLayer(const AnyRecord& record, std::string_view layer) {
  const std::shared_ptr<StackMark> mark = record.controls.Find<StackMark>();
  return mark && std::find(mark->layers.begin(), mark->layers.end(), layer) != mark->layers.end();
}

// Each layer marks the record that it returns.
inline void MarkLayer(AnyRecord& record, std::string layer) {
  auto mark = std::make_shared<StackMark>();
  if (const std::shared_ptr<StackMark> inner = record.controls.Find<StackMark>()) mark->layers = inner->layers;
  mark->layers.push_back(std::move(layer));
  record.controls.Add(std::move(mark));
}

}  // namespace packalloc

#endif  // PACKALLOC_LIB_LAYERS_STACK_RULES_H_
