// What a whole process sees: a machine without OpenCL, and the end of a program that still holds buffers. Each case
// runs this program again, as a child with an environment of its own.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "packalloc/allocator.h"
#include "packalloc/backends/opencl.h"
#include "packalloc/buffer.h"
#include "packalloc/layers/lru.h"
#include "packalloc/packed_allocator.h"
#include "packalloc/registry.h"
#include "test/backends/opencl_fault_layer/fault_layer.h"

namespace packalloc {
namespace {

struct Result {
  int status = -1;  // exit status, or 128 + signal
  std::string output;
};

using Environment = std::vector<std::pair<std::string, std::string>>;

// Runs a program with both of its outputs read, and `environment` added to its own.
Result Run(std::vector<std::string> command, const Environment& environment) {
  int pipe_ends[2];
  REQUIRE(pipe(pipe_ends) == 0);
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    bool replaced = false;
    for (const auto& [name, value] : environment)
      replaced |= std::strncmp(*variable, (name + "=").c_str(), name.size() + 1) == 0;
    if (!replaced) variables.emplace_back(*variable);
  }
  for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
  std::vector<char*> env;
  for (std::string& variable : variables) env.push_back(variable.data());
  env.push_back(nullptr);
  std::vector<char*> argv;
  for (std::string& word : command) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], 1);
  posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], 2);
  posix_spawn_file_actions_addclose(&actions, pipe_ends[0]);
  pid_t child = 0;
  const int spawned = posix_spawn(&child, argv[0], &actions, nullptr, argv.data(), env.data());
  posix_spawn_file_actions_destroy(&actions);
  close(pipe_ends[1]);
  REQUIRE(spawned == 0);
  Result result;
  char buffer[4096];
  for (ssize_t n = 0; (n = read(pipe_ends[0], buffer, sizeof buffer)) > 0;) {
    result.output.append(buffer, static_cast<std::size_t>(n));
  }
  close(pipe_ends[0]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

// This program again.
Result RunAgain(const std::string& mode, const Environment& environment) {
  return Run({"/proc/self/exe", mode}, environment);
}

// As a child: prints why CL is not there, and fails where anything else is wrong with that.
int TellWhyAbsent() {
  std::string reason;
  bool cpu = false;
  for (const DeviceInfo& device : Devices()) {
    if (device.name == "CL" && !device.available) reason = device.reason;
    cpu |= device.name == "CPU" && device.available;
  }
  const absl::Status opened = Open("CL").status();
  const absl::Status direct = OpenClAllocator().status();
  const absl::StatusOr<PackedAllocator> fallback = Open("CPU");
  std::cout << reason << '\n';
  if (reason.empty() || !cpu || !fallback.ok() || !Buffer(*fallback, 10).Allocate().ok()) return 1;
  if (!absl::IsUnavailable(opened) || !absl::IsUnavailable(direct)) return 2;
  return std::string(opened.message()).find(reason) == std::string::npos ? 3 : 0;
}

// The fault layer in a child that leaves buffers behind, and what it counted when the process began to exit.
testing::FaultLayerControl* layer = nullptr;
std::size_t calls_before_exit = 0;

// Constructed first, so destroyed when all else is: drivers may be gone long before.
struct NoCallsAfterExit {
  ~NoCallsAfterExit() {
    if (layer == nullptr || layer->calls() == calls_before_exit) return;
    std::fputs("the driver was called while the process exits\n", stderr);
    std::fflush(stderr);
    _exit(9);
  }
};
const NoCallsAfterExit no_calls_after_exit;

std::vector<Buffer>& LeftOver() {
  static std::vector<Buffer> buffers;
  return buffers;
}
// Constructed before main, so destroyed after everything that main loads.
[[maybe_unused]] const bool constructed_early = LeftOver().empty();

// As a child: leaves buffers, views and a record to the end of the process.
int LeaveBuffers(bool exit_on_thread) {
  layer = testing::LoadFaultLayer(PACKALLOC_FAULT_LAYER);
  if (layer == nullptr) return 6;
  std::atexit([] { calls_before_exit = layer->calls(); });                // so it runs after the library's own handler
  const absl::StatusOr<Allocator<OpenClBuf>> record = OpenClAllocator();  // not Open, whose allocators stay for ever
  if (!record.ok()) return 1;
  const PackedAllocator bare = *Pack(*record);
  for (const PackedAllocator& device : {bare, *Lru(bare)}) {
    for (int i = 0; i < 5; ++i) {
      Buffer buffer(device, 4096);
      if (!buffer.Allocate().ok()) return 2;
      const std::vector<std::byte> zeros(4096);
      if (!buffer.CopyIn(zeros).ok()) return 3;
      absl::StatusOr<Buffer> view = buffer.View(100, 100);
      if (!view.ok()) return 4;
      LeftOver().push_back(*view);
      LeftOver().push_back(buffer);
    }
    absl::StatusOr<AnyBuf> cached = device.alloc(1 << 20);
    if (!cached.ok() || !device.free(*cached, 1 << 20).ok()) return 5;
  }
  if (exit_on_thread) std::thread([] { std::exit(0); }).join();
  return 0;
}

bool HasDevice() { return RunAgain("absent", {}).status != 0; }

TEST_CASE("without platforms, devices or a loader CL is listed with the reason, and the rest works") {
  struct Case {
    const char* variable;
    const char* value;
    const char* reason;
  };
  for (const Case& c :
       {Case{"OCL_ICD_VENDORS", "/nonexistent", "0 OpenCL platforms"}, Case{"POCL_DEVICES", "", "no device"},
        Case{"PACKALLOC_LIBOPENCL", "/nonexistent/libOpenCL.so.1", "no OpenCL loader"},
        Case{"PACKALLOC_LIBOPENCL", "libm.so.6", "has no cl"}}) {
    CAPTURE(c.value);
    const Result result = RunAgain("absent", {{c.variable, c.value}});
    CAPTURE(result.output);
    CHECK(result.status == 0);
    CHECK(result.output.find(c.reason) != std::string::npos);
  }
}

TEST_CASE("a program ends quietly with buffers left, by return and by exit on another thread") {
  if (!HasDevice()) {
    MESSAGE("left out: no OpenCL device here");
    return;
  }
  for (int run = 0; run < 20; ++run) {
    for (const std::string mode : {"return", "exit"}) {
      CAPTURE(run);
      CAPTURE(mode);
      const Result result = RunAgain(mode, {});
      CHECK(result.status == 0);
      CHECK(result.output == "");
    }
  }
}

#ifdef PACKALLOC_COMMAND
TEST_CASE("packalloc devices lists CL, and replay runs the recorded traces on it under a cache") {
  if (!HasDevice()) {
    MESSAGE("left out: no OpenCL device here");
    return;
  }
  const Result devices = Run({PACKALLOC_COMMAND, "devices"}, {});
  CAPTURE(devices.output);
  CHECK(devices.status == 0);
  for (const char* fact : {"CL:0", "platform", "version", "memory", "alignment", "maximum allocation"}) {
    CAPTURE(fact);
    CHECK(devices.output.find(fact) != std::string::npos);
  }
  const Result replay = Run(
      {PACKALLOC_COMMAND, "replay", std::string(PACKALLOC_TRACES) + "/mnist_train.csv", "--device", "CL+lru", "--json"},
      {});
  CAPTURE(replay.output);
  CHECK(replay.status == 0);
  CHECK(replay.output.find("\"hits\":") != std::string::npos);
}
#endif

}  // namespace
}  // namespace packalloc

int main(int argc, char** argv) {
  const std::string mode = argc == 2 ? argv[1] : "";
  if (mode == "absent") return packalloc::TellWhyAbsent();
  if (mode == "return" || mode == "exit") return packalloc::LeaveBuffers(mode == "exit");
  doctest::Context context(argc, argv);
  return context.run();
}
