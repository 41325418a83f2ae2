// The CUDA backend in processes of their own: drivers that are absent, old or incomplete, the end of a process, forks.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

namespace {

struct Result {
  int status = -1;
  std::string output;
};

using Environment = std::vector<std::pair<std::string, std::string>>;

Result RunCommand(const std::vector<std::string>& command, const Environment& environment) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], 1);
    dup2(ends[1], 2);
    close(ends[0]);
    close(ends[1]);
    setenv("PACKALLOC_LIBCUDA", FAKE_CUDA_LIBRARY, 1);
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    std::vector<char*> arguments;
    for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  close(ends[1]);
  Result result;
  char buffer[4096];
  for (ssize_t got = 0; (got = read(ends[0], buffer, sizeof buffer)) > 0;) {
    result.output.append(buffer, static_cast<std::size_t>(got));
  }
  close(ends[0]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  return result;
}

Result Run(const std::string& mode, const Environment& environment) {
  return RunCommand({CUDA_CHILD, mode}, environment);
}

// Unavailable with a reason that holds `part`, when listed and when opened; the CPU works.
void Unavailable(const Environment& environment, const std::string& part) {
  const Result result = Run("devices", environment);
  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(result.output.find("available\n") == std::string::npos);
  const std::size_t open = result.output.find("open: UNAVAILABLE");
  REQUIRE(open != std::string::npos);
  CHECK(result.output.substr(0, open).find(part) != std::string::npos);
  CHECK(result.output.find(part, open) != std::string::npos);
}

}  // namespace

TEST_CASE("no driver, a stub, no device, too old, a missing function: unavailable, and why") {
  Unavailable({{"PACKALLOC_LIBCUDA", "/nonexistent/libcuda.so.1"}}, "no CUDA driver: /nonexistent/libcuda.so.1");
  Unavailable({{"PACKALLOC_LIBCUDA", "/dev/null"}}, "no CUDA driver: /dev/null");
  Unavailable({{"FAKE_CUDA_MODE", "34"}}, "(34)");
  Unavailable({{"FAKE_CUDA_MODE", "100"}}, "(100)");
  Unavailable({{"FAKE_CUDA_MODE", "803"}}, "(803)");
  Unavailable({{"FAKE_CUDA_DEVICES", "0"}}, "0 CUDA devices");
  Unavailable({{"FAKE_CUDA_VERSION", "9000"}}, "too old: it is of CUDA 9.0, 11.0 is the oldest");
  for (const char* function : {"cuMemAlloc_v2", "cuEventDestroy_v2", "cuInit", "cuStreamIsCapturing"}) {
    Unavailable({{"FAKE_CUDA_MISSING", function}}, "has no function " + std::string(function));
  }
  Unavailable({{"FAKE_CUDA_MODE", "4"}}, "shut down");
}

TEST_CASE("the toolkit's stub library is known for what it is") {
  const char* stub = "/usr/local/cuda/lib64/stubs/libcuda.so";
  if (access(stub, R_OK) != 0) return;
  Unavailable({{"PACKALLOC_LIBCUDA", stub}}, "libcuda.so");
}

TEST_CASE("what there is, is listed; what is not, is named") {
  const Result result = Run("devices", {{"FAKE_CUDA_DEVICES", "2"}, {"FAKE_CUDA_MISSING", "cuMemAllocAsync"}});
  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(result.output.find("CUDA:0 available\nCUDA:1 available\nopen: OK\nopen 7: NOT_FOUND") == 0);
}

TEST_CASE("static buffers outlive the driver: silence, exit status 0, not one call after the first answer") {
  for (const char* mode : {"return", "exit-from-thread"}) {
    for (const char* schedule : {"lazy", "eager", "worker"}) {
      for (int i = 0; i < 7; ++i) {
        const Result result = Run(mode, {{"FAKE_CUDA_MODE", "exit"},
                                         {"FAKE_CUDA_SCHEDULE", schedule},
                                         {"FAKE_CUDA_LEAKS", "none"},
                                         {"FAKE_CUDA_EXIT_ON_VIOLATION", "66"}});
        CHECK_MESSAGE(result.status == 0, (std::string(mode) + " " + schedule + ": " + result.output));
        // The fake's own count, as it is unloaded: the first answer that it was gone was the last.
        CHECK(result.output == "fake_cuda: 1 calls after the driver was gone\n");
      }
    }
  }
}

TEST_CASE("static buffers and a driver that stays: all is given back") {
  for (const char* schedule : {"lazy", "eager", "worker"}) {
    const Result result = Run("return", {{"FAKE_CUDA_SCHEDULE", schedule}, {"FAKE_CUDA_EXIT_ON_VIOLATION", "66"}});
    CHECK_MESSAGE(result.status == 0, result.output);
    CHECK(result.output.empty());
  }
}

TEST_CASE("a forked child gets an error from every member, makes no driver call, and the parent goes on") {
  for (const char* schedule : {"lazy", "eager", "worker"}) {
    const Result result = Run("fork", {{"FAKE_CUDA_SCHEDULE", schedule}, {"FAKE_CUDA_EXIT_ON_VIOLATION", "66"}});
    CHECK_MESSAGE(result.status == 0, result.output);
    CHECK(result.output.empty());
  }
}

#ifdef PACKALLOC_COMMAND
TEST_CASE("packalloc devices lists CUDA, and replay runs on it under a cache") {
  const Environment strict{{"FAKE_CUDA_DEVICES", "2"}, {"FAKE_CUDA_EXIT_ON_VIOLATION", "66"}};
  const Result devices = RunCommand({PACKALLOC_COMMAND, "devices"}, strict);
  INFO(devices.output);
  CHECK(devices.status == 0);
  CHECK(devices.output.find("CUDA:0") != std::string::npos);
  CHECK(devices.output.find("CUDA:1") != std::string::npos);
  for (const char* schedule : {"lazy", "eager", "worker"}) {
    Environment environment = strict;
    environment.emplace_back("FAKE_CUDA_SCHEDULE", schedule);
    const Result replay = RunCommand({PACKALLOC_COMMAND, "replay", std::string(PACKALLOC_TRACES) + "/mnist_train.csv",
                                      "--device", "CUDA+lru", "--json"},
                                     environment);
    INFO(replay.output);
    CHECK(replay.status == 0);
    CHECK(replay.output.find("\"hits\":") != std::string::npos);
  }
}
#endif
