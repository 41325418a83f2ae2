#include "packalloc/layers/lru.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/layers/lru_cache.h"
#include "lib/layers/stack_rules.h"

namespace packalloc {
namespace {

#if defined(__SANITIZE_ADDRESS__)
#define PACKALLOC_DEBUG_BUILD 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)  // clang's way to say it
#define PACKALLOC_DEBUG_BUILD 1
#endif
#endif
#if defined(PACKALLOC_DEBUG_BUILD)
constexpr bool kDebugBuild = true;
#elif defined(NDEBUG) || defined(__OPTIMIZE__)
constexpr bool kDebugBuild = false;
#else
constexpr bool kDebugBuild = true;
#endif

}  // namespace

absl::StatusOr<AnyRecord> LruLayer(AnyRecord inner, const LruOptions& options) {
  if (!(options.max_waste >= 0 && options.max_waste <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("Lru: max_waste is ", options.max_waste, "; it is the part of a request, from 0 to 1"));
  }
  if (ContainsLayer(inner, "checked")) {
    return absl::InvalidArgumentError(
        "Lru over Checked: the checker would take cached buffers for buffers in use; put Checked outside the cache");
  }
  if (ContainsLayer(inner, "fallback")) {
    return absl::InvalidArgumentError(
        "Lru over Fallback: the cache would serve the fallback's memory for ever; give each of the two its own cache");
  }
  AnyRecord layered = LruCache::Over(std::move(inner), options, /*check=*/options.check_frees.value_or(kDebugBuild));
  MarkLayer(layered, "lru");
  return layered;
}

absl::StatusOr<PackedAllocator> Lru(const PackedAllocator& packed, const LruOptions& options) {
  return ApplyLayer(packed, [&](AnyRecord inner) { return LruLayer(std::move(inner), options); });
}

}  // namespace packalloc
