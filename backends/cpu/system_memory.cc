#include "backends/cpu/system_memory.h"

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "packalloc/allocator.h"

namespace packalloc {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::optional<std::size_t> ReadNumber(const std::string& path) {
  std::size_t number = 0;  // "max" and a missing file are no number
  if (!absl::SimpleAtoi(ReadFile(path), &number)) return std::nullopt;
  return number;
}

// The number that follows `key` at the start of a line of `text`.
std::optional<std::size_t> Field(absl::string_view text, absl::string_view key) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::ConsumePrefix(&line, key)) continue;
    const std::vector<absl::string_view> words = absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    std::size_t number = 0;
    if (!words.empty() && absl::SimpleAtoi(words[0], &number)) return number;
  }
  return std::nullopt;
}

// The files of one version of control groups.
struct Hierarchy {
  const char* mount;
  const char* limit;
  const char* usage;
  const char* reclaimable;  // in memory.stat: page cache that goes when memory is wanted
};
constexpr Hierarchy kVersion1{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                              "total_inactive_file "};
constexpr Hierarchy kVersion2{"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file "};

void ApplyLimits(const std::string& root, const Hierarchy& files, absl::string_view group, MemoryInfo& info) {
  // A limit of any group above holds too. In a container the path may be the host's; the mount's root still holds.
  for (;;) {
    group = absl::StripSuffix(group, "/");
    const std::string directory = absl::StrCat(root, files.mount, group, "/");
    if (const std::optional<std::size_t> limit = ReadNumber(directory + files.limit)) {
      const std::size_t reclaimable = Field(ReadFile(directory + "memory.stat"), files.reclaimable).value_or(0);
      const std::size_t usage = ReadNumber(directory + files.usage).value_or(0);
      const std::size_t used = usage - std::min(usage, reclaimable);
      info.total_bytes = std::min(info.total_bytes, *limit);
      info.free_bytes = std::min(info.free_bytes, *limit - std::min(*limit, used));
    }
    if (group.empty()) return;
    const std::size_t slash = group.rfind('/');
    group = slash == absl::string_view::npos ? absl::string_view() : group.substr(0, slash);
  }
}

}  // namespace

absl::StatusOr<MemoryInfo> SystemMemory(const std::string& root) {
  const std::string meminfo = ReadFile(root + "/proc/meminfo");
  constexpr std::size_t kKib = 1024;
  const auto total = Field(meminfo, "MemTotal:");
  const auto available = Field(meminfo, "MemAvailable:");
  if (!total || !available) {
    return absl::UnavailableError(absl::StrCat("CPU: the amount of memory is unknown: ", root,
                                               "/proc/meminfo cannot be read, or has no MemTotal and MemAvailable"));
  }
  MemoryInfo info{*available * kKib, *total * kKib};
  const std::string groups = ReadFile(root + "/proc/self/cgroup");  // lines of "id:controllers:path"
  for (const absl::string_view line : absl::StrSplit(groups, '\n', absl::SkipEmpty())) {
    const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const std::vector<absl::string_view> controllers = absl::StrSplit(parts[1], ',');
    if (parts[1].empty()) {
      ApplyLimits(root, kVersion2, parts[2], info);
    } else if (std::find(controllers.begin(), controllers.end(), "memory") != controllers.end()) {
      ApplyLimits(root, kVersion1, parts[2], info);
    }
  }
  return info;
}

}  // namespace packalloc
