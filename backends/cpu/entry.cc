#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "backends/cpu/system_memory.h"
#include "lib/open_request.h"
#include "packalloc/backend.h"
#include "packalloc/backends/cpu.h"

namespace packalloc::internal {
namespace {

std::string ModelName() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    const std::size_t colon = line.find(':');
    if (absl::StartsWith(line, "model name") && colon != std::string::npos) {
      return std::string(absl::StripAsciiWhitespace(absl::string_view(line).substr(colon + 1)));
    }
  }
  return "main memory";
}

// "always", "madvise" or "never": the bracketed word of the kernel's list.
std::string HugePages() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  for (std::string word; file >> word;) {
    if (word.size() > 2 && word.front() == '[') return word.substr(1, word.size() - 2);
  }
  return "unknown";
}

}  // namespace

Backend CpuBackend() {
  Backend backend;
  backend.name = "CPU";
  backend.default_rank = 30;
  backend.canonical_target = [](const std::string& target) { return OnlyDevice(target, "CPU"); };
  backend.open = [](const OpenRequest& request) -> absl::StatusOr<PackedAllocator> {
    if (auto target = OnlyDevice(request.target, "CPU"); !target.ok()) return target.status();
    absl::StatusOr<CpuOptions> options = OptionsOf<CpuOptions>(request, "CPU");
    if (!options.ok()) return options.status();
    return Pack(CpuAllocator(*options));
  };
  backend.devices = [] {
    DeviceInfo device;
    device.name = "CPU";
    device.description = ModelName();
    if (absl::StatusOr<MemoryInfo> memory = SystemMemory(); memory.ok()) device.memory = *memory;
    device.properties = {{"threads", absl::StrCat(std::thread::hardware_concurrency())}, {"huge pages", HugePages()}};
    return std::vector<DeviceInfo>{device};
  };
  return backend;
}

}  // namespace packalloc::internal
