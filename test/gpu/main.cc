// gpu_test: what only a real GPU can show of the CUDA backend. One file to copy to a machine that has one: the C++
// library and Abseil are inside, the driver is found at run time.
//   gpu_test                          everything; its output is what docs/gpu.md holds
//   gpu_test --only bandwidth --max-bytes 1073741824
// Exit status: 0 all checks passed; 1 a check failed; 2 wrong arguments; 3 nothing failed, but something could not be
// tried; 77 there is no usable GPU here.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "test/gpu/gpu.h"

namespace {

struct Section {
  const char* name;
  const char* title;
  void (*run)(const gpu::Settings&, gpu::Results&);
};

constexpr Section kSections[] = {
    {"device", "The device", gpu::Describe},
    {"contract", "The contract suite", gpu::Contract},
    {"bandwidth", "Copies, beside the raw driver's", gpu::Bandwidth},
    {"pinning", "copyin with pinned staging, and without", gpu::Pinning},
    {"exhaustion", "Out of memory, and after", gpu::Exhaustion},
    {"order", "Stream order", gpu::StreamOrder},
    {"graph", "Graph capture", gpu::GraphCapture},
    {"threads", "Two threads", gpu::Threads},
    {"peers", "Two devices", gpu::TwoDevices},
};

}  // namespace

int main(int argc, char** argv) {
  gpu::Settings settings;
  std::vector<std::string> only;
  std::vector<std::string> names;
  for (const Section& section : kSections) names.emplace_back(section.name);
  CLI::App app("Shows the CUDA backend of packalloc on a real GPU.");
  app.add_option("--device", settings.device, "the device's number")->capture_default_str();
  app.add_option("--only", only, "sections to run")->check(CLI::IsMember(names))->delimiter(',');
  app.add_option("--max-bytes", settings.max_bytes, "largest copy, in bytes")->capture_default_str();
  app.add_option("--seconds", settings.seconds, "of each measurement")->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }

  absl::StatusOr<gpu::Device> device = gpu::Device::Open({.device = settings.device});
  if (!device.ok()) {
    std::printf("There is no usable GPU here, so nothing was tried: %s\n", device.status().ToString().c_str());
    return 77;
  }
  int passed = 0;
  int failed = 0;
  int skipped = 0;
  for (const Section& section : kSections) {
    if (!only.empty() && std::find(only.begin(), only.end(), section.name) == only.end()) continue;
    std::printf("\n## %s\n\n", section.title);
    std::fflush(stdout);
    gpu::Results results;
    section.run(settings, results);
    std::printf("\n%d checks passed, %d failed, %d not tried.\n", results.passed, results.failed, results.skipped);
    std::fflush(stdout);
    passed += results.passed;
    failed += results.failed;
    skipped += results.skipped;
  }
  std::printf("\n%d passed, %d failed, %d skipped\n", passed, failed, skipped);
  return failed != 0 ? 1 : skipped != 0 ? 3 : 0;
}
