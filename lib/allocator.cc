#include "packalloc/allocator.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace packalloc {

std::uint32_t NewDomain() {
  static std::atomic<std::uint32_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

std::string_view ToString(Member member) {
  constexpr std::array<std::string_view, kMembers> kNames = {"alloc",    "free",        "copyin",     "copyout",
                                                             "addr",     "offset",      "transfer",   "copy_from_disk",
                                                             "host_ptr", "memory_info", "synchronize"};
  return kNames.at(static_cast<std::size_t>(member));
}

}  // namespace packalloc
