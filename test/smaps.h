// What /proc/self/smaps says about this process's mappings.
#ifndef PACKALLOC_TEST_SMAPS_H_
#define PACKALLOC_TEST_SMAPS_H_

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <optional>
#include <string>

namespace packalloc {

// Whether the kernel was asked for huge pages (MADV_HUGEPAGE) in the first mapping that `is_meant` takes, given its
// first and last address and its flags; nullopt where there is none, or where the kernel does not tell.
inline std::optional<bool> AsksForHugePages(
    const std::function<bool(std::uintptr_t, std::uintptr_t, const std::string& flags)>& is_meant) {
  if (!std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled")) return std::nullopt;
  std::ifstream smaps("/proc/self/smaps");
  std::uintptr_t first = 0;
  std::uintptr_t last = 0;
  const std::string field = "VmFlags:";
  for (std::string line; std::getline(smaps, line);) {
    if (std::sscanf(line.c_str(), "%lx-%lx ", &first, &last) == 2) continue;
    if (line.compare(0, field.size(), field) != 0) continue;
    const std::string flags = line.substr(field.size()) + " ";
    if (is_meant(first, last, flags)) return flags.find(" hg ") != std::string::npos;
  }
  return std::nullopt;
}

inline std::optional<bool> AsksForHugePages(const void* address) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  return AsksForHugePages(
      [at](std::uintptr_t first, std::uintptr_t last, const std::string&) { return first <= at && at < last; });
}

}  // namespace packalloc

#endif  // PACKALLOC_TEST_SMAPS_H_
