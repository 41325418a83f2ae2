#include "packalloc/allocator.h"

#include <atomic>
#include <cstdint>

namespace packalloc {

std::uint32_t NewDomain() {
  static std::atomic<std::uint32_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace packalloc
