// What only shows in a process of its own: the environment, leaks when the library goes, exit status, the driver that
// is gone at exit, missing symbols.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

namespace {

struct Result {
  int status = -1;  // exit status; 1000 + the signal where one ended it
  std::string output;
};

// Runs the child with only these FAKE_CUDA_ variables set.
Result Run(const std::vector<std::pair<std::string, std::string>>& environment, std::vector<std::string> arguments,
           const std::string& library = FAKE_CUDA_LIBRARY) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], 1);
    dup2(ends[1], 2);
    close(ends[0]);
    close(ends[1]);
    for (const auto& [name, value] : environment) setenv(("FAKE_CUDA_" + name).c_str(), value.c_str(), 1);
    std::string program = FAKE_CUDA_CHILD, path = library;
    std::vector<char*> argv = {program.data(), path.data()};
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(ends[1]);
  Result result;
  char buffer[4096];
  for (ssize_t got; (got = read(ends[0], buffer, sizeof(buffer))) > 0;) {
    result.output.append(buffer, static_cast<size_t>(got));
  }
  close(ends[0]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  return result;
}

bool Contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

const char* const kSchedules[] = {"lazy", "eager", "worker"};

}  // namespace

TEST_CASE("a correct program says nothing") {
  Result result = Run({{"EXIT_ON_VIOLATION", "66"}}, {"clean"});
  CHECK(result.status == 0);
  CHECK(result.output == "start 0\nfree 0\nrelease 0\n");
}

TEST_CASE("violations are printed, and are the exit status on demand") {
  Result result = Run({}, {"double free"});
  CHECK(result.status == 0);
  CHECK(Contains(result.output, "fake_cuda: double-free: cuMemFree_v2: "));
  CHECK(Contains(result.output, "1 violation(s)"));
  result = Run({{"EXIT_ON_VIOLATION", "66"}, {"QUIET", "1"}}, {"double free"});
  CHECK(result.status == 66);
  CHECK(result.output == "start 0\nfree 1\n");
  CHECK(Run({{"ABORT", "1"}}, {"double free"}).status == 1000 + 6);
}

TEST_CASE("leaks are reported when the process ends") {
  for (const char* schedule : kSchedules) {
    Result result = Run({{"EXIT_ON_VIOLATION", "66"}, {"SCHEDULE", schedule}}, {"leak"});
    CHECK(result.status == 66);
    CHECK(Contains(result.output, "leak: 100 bytes of device memory"));
    CHECK(Contains(result.output, "leak: the primary context of device 0 is still retained 1 time(s)"));
  }
  CHECK(Run({{"EXIT_ON_VIOLATION", "66"}, {"LEAKS", "none"}}, {"leak"}).status == 0);
  CHECK(Run({{"EXIT_ON_VIOLATION", "66"}, {"LEAKS", "objects"}}, {"no release"}).status == 0);
  CHECK(Run({{"EXIT_ON_VIOLATION", "66"}}, {"no release"}).status == 66);
  CHECK(Run({{"EXIT_ON_VIOLATION", "66"}}, {"unload"}).output == "start 0\ndlclose 0\n");
}

TEST_CASE("objects that are destroyed after the driver is gone") {
  for (const char* schedule : kSchedules) {
    for (const char* how : {"frees at exit", "exit from a thread"}) {
      Result result = Run({{"MODE", "exit"}, {"EXIT_ON_VIOLATION", "66"}, {"SCHEDULE", schedule}}, {how});
      CHECK(result.status == 0);
      CHECK(result.output == "start 0\nat exit 4\nfake_cuda: 1 calls after the driver was gone\n");
    }
    // A driver that stays is told of the fill that is not known done, and that nobody released the context.
    Result result = Run({{"EXIT_ON_VIOLATION", "66"}, {"SCHEDULE", schedule}}, {"frees at exit"});
    CHECK(result.status == 66);
    CHECK(Contains(result.output, "at exit 0\n"));
    CHECK(Contains(result.output, "pending-work: cuMemFree_v2"));
    CHECK(Contains(result.output, "2 violation(s)"));
  }
}

TEST_CASE("the environment: modes, failures, devices, capacity") {
  for (const char* code : {"4", "34", "100", "803"}) {
    Result result = Run({{"MODE", code}, {"QUIET", "1"}}, {"nothing"});
    CHECK(result.output == "start " + std::string(code) + "\n");
  }
  CHECK(Run({{"FAIL", "cuMemAlloc_v2:1:2"}, {"LEAKS", "none"}}, {"nothing"}).output == "start 2\n");
  CHECK(Run({{"FAIL", "cuCtxGetDevice:1:999,cuDevicePrimaryCtxRetain:1:46"}}, {"nothing"}).output == "start 46\n");
  CHECK(Run({{"DEVICES", "0"}}, {"nothing"}).output == "start 101\n");
  CHECK(Run({{"CAPACITY", "99"}, {"LEAKS", "none"}}, {"nothing"}).output == "start 2\n");
}

TEST_CASE("what cannot be understood is said, and the default holds") {
  const std::pair<const char*, const char*> kBad[] = {
      {"MODE", "5"},       {"SCHEDULE", "Lazy"}, {"DEVICES", "-1"},    {"DEVICES", "17"},
      {"CAPACITY", "1e3"}, {"CAPACITY", "1 "},   {"FAIL", "cuInit:1"}, {"FAIL", "cuInit:one:999"},
      {"FAIL", ":1:2"},    {"PEERS", "0-1"},     {"LEAKS", "some"},
  };
  for (const auto& [name, value] : kBad) {
    Result result = Run({{name, value}}, {"clean"});
    INFO(result.output);
    CHECK(result.status == 0);
    std::string line = "fake_cuda: FAKE_CUDA_" + std::string(name) + "=" + value + " is not understood and ignored\n";
    CHECK(result.output == line + "start 0\nfree 0\nrelease 0\n");
  }
}

TEST_CASE("a driver without some of its entry points") {
  Result result = Run({{"MISSING", "cuMemAllocAsync,cuMemFree_v2,cuNoSuchThing"}},
                      {"symbols", "cuMemAllocAsync", "cuMemFree_v2", "cuMemAlloc_v2", "cuMemFreeAsync"});
  CHECK(result.status == 0);
  CHECK(result.output ==
        "fake_cuda: FAKE_CUDA_MISSING: there is no cuNoSuchThing\n"
        "cuMemAllocAsync missing\ncuMemFree_v2 missing\ncuMemAlloc_v2 found\ncuMemFreeAsync found\n");
}

TEST_CASE("every entry point that the fake promises is there") {
  std::vector<std::string> names = {"symbols",
                                    "cuInit",
                                    "cuDriverGetVersion",
                                    "cuGetErrorName",
                                    "cuGetErrorString",
                                    "cuDeviceGetCount",
                                    "cuDeviceGet",
                                    "cuDeviceGetName",
                                    "cuDeviceGetAttribute",
                                    "cuDeviceTotalMem_v2",
                                    "cuMemGetInfo_v2",
                                    "cuDevicePrimaryCtxRetain",
                                    "cuDevicePrimaryCtxRelease_v2",
                                    "cuCtxPushCurrent_v2",
                                    "cuCtxPopCurrent_v2",
                                    "cuCtxGetCurrent",
                                    "cuCtxSetCurrent",
                                    "cuCtxGetDevice",
                                    "cuCtxCreate_v2",
                                    "cuCtxDestroy_v2",
                                    "cuCtxSynchronize",
                                    "cuMemAlloc_v2",
                                    "cuMemFree_v2",
                                    "cuMemAllocManaged",
                                    "cuMemHostAlloc",
                                    "cuMemFreeHost",
                                    "cuMemHostRegister_v2",
                                    "cuMemHostUnregister",
                                    "cuPointerGetAttribute",
                                    "cuPointerGetAttributes",
                                    "cuMemcpyHtoD_v2",
                                    "cuMemcpyDtoH_v2",
                                    "cuMemcpyHtoDAsync_v2",
                                    "cuMemcpyDtoHAsync_v2",
                                    "cuMemcpyDtoDAsync_v2",
                                    "cuMemcpyPeerAsync",
                                    "cuMemsetD8Async",
                                    "cuStreamCreate",
                                    "cuStreamDestroy_v2",
                                    "cuStreamSynchronize",
                                    "cuStreamQuery",
                                    "cuStreamWaitEvent",
                                    "cuEventCreate",
                                    "cuEventRecord",
                                    "cuEventQuery",
                                    "cuEventSynchronize",
                                    "cuEventDestroy_v2",
                                    "cuDeviceCanAccessPeer",
                                    "cuCtxEnablePeerAccess",
                                    "cuMemAllocAsync",
                                    "cuMemFreeAsync",
                                    "cuDeviceGetDefaultMemPool",
                                    "cuMemPoolCreate",
                                    "cuMemPoolDestroy",
                                    "cuMemPoolSetAttribute",
                                    "cuMemPoolTrimTo",
                                    "cuStreamIsCapturing",
                                    "cuStreamBeginCapture_v2",
                                    "cuStreamEndCapture",
                                    "cuLaunchHostFunc"};
  size_t count = names.size() - 1;
  Result result = Run({}, std::move(names));
  CHECK(result.status == 0);
  CHECK_FALSE(Contains(result.output, "missing"));
  size_t found = 0;
  for (size_t at = 0; (at = result.output.find(" found\n", at)) != std::string::npos; ++at) ++found;
  CHECK(found == count);
}
