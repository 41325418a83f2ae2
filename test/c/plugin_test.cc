#include "packalloc/plugin.h"

#include <doctest/doctest.h>
#include <elf.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "lib/c/plugin_file.h"
#include "packalloc/buffer.h"
#include "packalloc/c/plugin.h"
#include "packalloc/c_record.h"
#include "packalloc/registry.h"
#include "packalloc/testing/contract.h"
#include "test/in_child.h"
#include "test/sanitizers.h"
#include "test/temp_dir.h"

namespace packalloc {
namespace {

std::string Wrong(const std::string& what) { return PLUGINS_DIR "p_" + what + ".so"; }

// The status of a plugin that is refused, with the path and both versions in it.
absl::StatusCode Refused(const std::string& path, const std::string& version, const std::string& why) {
  const absl::Status status = LoadPlugin(path);
  const std::string message(status.message());
  CAPTURE(message);
  CHECK(message.find(path) != std::string::npos);
  CHECK(message.find("version " + version + ", this library's is 1") != std::string::npos);
  CHECK(message.find(why) != std::string::npos);
  return status.code();
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

DeviceInfo Listed(const std::string& name) {
  for (const DeviceInfo& device : Devices()) {
    if (device.name == name) return device;
  }
  FAIL(name << " is not listed");
  return {};
}

TEST_CASE("the example plugin: listed, opened by name, native handles, and it keeps the contract") {
  REQUIRE(LoadPlugin(EXAMPLE_PLUGIN).ok());
  CHECK(Listed("CHEAP:0").available);
  CHECK(Listed("CHEAP:0").description == "the heap, from a plugin in C");
  const auto device = Open("CHEAP:0+lru");
  REQUIRE(device.ok());
  const auto native = Find<NativeHandles>(*device);
  REQUIRE(native != nullptr);
  CHECK(native->Get("cheap.heap").ok());
  CHECK(native->Get("cheap.queue").status().code() == absl::StatusCode::kNotFound);
  CHECK(Open("CHEAP:7").status().code() == absl::StatusCode::kNotFound);
  CHECK(Open("CHEAP", 42).status().code() == absl::StatusCode::kInvalidArgument);

  testing::ContractOptions options;
  options.skips = testing::WithoutHooks();
  for (const char* member : {"copy_from_disk", "memory_info"}) options.skips.merge(testing::WithoutMember(member));
  const auto fresh = [] {
    Shutdown();
    return Open("CHEAP");
  };
  testing::RunContract(fresh, options);
  const auto raw = [fresh] { return *fresh()->unpack<packalloc_raw_buffer>(); };
  options.checks_ranges = false;
  testing::RunContract(raw, options);

  CHECK(Refused(EXAMPLE_PLUGIN, "1", "there is a backend CHEAP already") == absl::StatusCode::kAlreadyExists);
  CHECK(Open("CHEAP").ok());
}

TEST_CASE("a plugin's code is there for its buffers, whatever is closed and forgotten") {
  LoadPlugin(EXAMPLE_PLUGIN).IgnoreError();  // also when this test runs alone
  Buffer buffer(*Open("CHEAP"), 100);
  REQUIRE(buffer.EnsureAllocated().ok());
  Shutdown();
  LoadPlugin(EXAMPLE_PLUGIN).IgnoreError();  // loaded once more, and refused
  CHECK(buffer.CopyIn(std::vector<std::byte>(100, std::byte{1})).ok());
  buffer = Buffer();
}

TEST_CASE("of a plugin of another version no code runs, not even its constructors") {
  using absl::StatusCode;
  CHECK(Refused(Wrong("wrong_version"), "4711", "another version") == StatusCode::kFailedPrecondition);
  CHECK(Refused(Wrong("zero_version"), "0", "another version") == StatusCode::kFailedPrecondition);
#if !PACKALLOC_WITH_ASAN  // clang's pads it to the size of a padded right one
  CHECK(Refused(Wrong("long_version"), "unknown", "8 bytes, not 4") == StatusCode::kInvalidArgument);
#endif
  CHECK(Refused(Wrong("function_version"), "unknown", kPluginVersionSymbol) == StatusCode::kInvalidArgument);
  CHECK(Refused(Wrong("no_version"), "unknown", kPluginVersionSymbol) == StatusCode::kInvalidArgument);
  CHECK(Refused(Wrong("no_backend"), "1", kPluginBackendSymbol) == StatusCode::kInvalidArgument);
}

TEST_CASE("a plugin that has no backend, or a malformed one") {
  using absl::StatusCode;
  CHECK(Refused(Wrong("null_backend"), "1", "NULL") == StatusCode::kFailedPrecondition);
  CHECK(Refused(Wrong("small_backend"), "1", "struct_size is 8") == StatusCode::kInvalidArgument);
  CHECK(Refused(Wrong("huge_backend"), "1", "struct_size") == StatusCode::kInvalidArgument);
  CHECK(Refused(Wrong("no_name"), "1", "name is NULL") == StatusCode::kInvalidArgument);
  CHECK(Refused(Wrong("no_open"), "1", "open is NULL") == StatusCode::kInvalidArgument);
  CHECK(Refused(Wrong("bad_name"), "1", "lower case") == StatusCode::kInvalidArgument);
}

TEST_CASE("a plugin whose open fails, answers nonsense, or gives a bad record") {
  for (const char* what : {"open_fails", "open_garbage", "open_null", "open_empty", "open_small", "list_small"}) {
    REQUIRE(LoadPlugin(Wrong(what)).ok());
  }
  CHECK(Open("POPENFAILS").status().code() == absl::StatusCode::kUnavailable);
  CHECK(std::string(Open("POPENFAILS").status().message()).find("the plugin says why") != std::string::npos);
  CHECK(Open("POPENGARBAGE").status().code() == absl::StatusCode::kInternal);
  CHECK(Open("POPENNULL").status().code() == absl::StatusCode::kInternal);
  CHECK(Open("POPENEMPTY").status().code() == absl::StatusCode::kInternal);
  CHECK(Open("POPENSMALL").status().code() == absl::StatusCode::kInternal);
  // A device without a name has its backend's; a listing that fails says so.
  CHECK_FALSE(Listed("POPENFAILS").available);
  std::vector<std::string> reasons;
  for (const DeviceInfo& device : Devices()) {
    if (device.name == "POPENFAILS" || device.name == "PLISTSMALL") reasons.push_back(device.reason);
  }
  REQUIRE(reasons.size() == 4);
  CHECK(reasons[1].find("the plugin says why") != std::string::npos);
  CHECK(reasons[2].find("struct_size") != std::string::npos);
  CHECK(reasons[3].find("NULL") != std::string::npos);
}

TEST_CASE("what is no shared library of this machine") {
  using absl::StatusCode;
  const TempDir folder;
  CHECK(Refused(folder / "none.so", "unknown", "") == StatusCode::kNotFound);
  CHECK(Refused(folder.path(), "unknown", "") == StatusCode::kInvalidArgument);
  CHECK(Refused(folder.Write("empty.so", ""), "unknown", "0 bytes") == StatusCode::kInvalidArgument);
  CHECK(Refused(folder.Write("text.so", std::string(1000, 'x')), "unknown", "not an ELF") ==
        StatusCode::kInvalidArgument);
  const std::string good = ReadFile(EXAMPLE_PLUGIN);
  const auto changed = [&](auto change) {
    std::string bytes = good;
    Elf64_Ehdr header;
    std::memcpy(&header, bytes.data(), sizeof header);
    change(header);
    std::memcpy(bytes.data(), &header, sizeof header);
    return folder.Write("changed.so", bytes);
  };
  CHECK(Refused(changed([](Elf64_Ehdr& h) { h.e_machine = EM_SPARCV9; }), "unknown", "machine 43") ==
        StatusCode::kInvalidArgument);
  CHECK(Refused(changed([](Elf64_Ehdr& h) { h.e_ident[EI_CLASS] = ELFCLASS32; }), "unknown", "word size") ==
        StatusCode::kInvalidArgument);
  CHECK(Refused(changed([](Elf64_Ehdr& h) { h.e_type = ET_REL; }), "unknown", "object file") ==
        StatusCode::kInvalidArgument);
  CHECK(Refused(changed([](Elf64_Ehdr& h) { h.e_shoff = UINT64_MAX - 8; }), "unknown", "tables") ==
        StatusCode::kInvalidArgument);
  CHECK(Refused(folder.Write("half.so", good.substr(0, good.size() / 2)), "unknown", "") ==
        StatusCode::kInvalidArgument);
}

TEST_CASE("a damaged file is read without harm") {
  const TempDir folder;
  const std::string good = ReadFile(EXAMPLE_PLUGIN);
  const unsigned seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 300; ++i) {
    std::string bytes = good;
    // Mostly in the headers, where it matters.
    for (int n = 0; n < 4; ++n) {
      const bool tail = random() % 2 == 0;
      const std::size_t at = tail ? bytes.size() - 1 - random() % 2000 : random() % 1000;
      bytes[at] = static_cast<char>(random());
    }
    ReadPluginFile(folder.Write("damaged.so", bytes)).IgnoreError();
  }
}

TEST_CASE("PACKALLOC_PLUGINS: loaded when the registry is first used; what does not load is a warning") {
  // In a process of its own: the variable is read once.
  const TempDir folder;
  const std::string output = folder / "stderr";
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const std::string plugins = std::string(EXAMPLE_PLUGIN) + "::/nonexistent.so:" + Wrong("wrong_version");
    setenv("PACKALLOC_PLUGINS", plugins.c_str(), 1);
    setenv("PACKALLOC_DEVICE", "CHEAP", 1);
    if (freopen(output.c_str(), "w", stderr) == nullptr || freopen("/dev/null", "w", stdout) == nullptr) _exit(126);
    execl("/proc/self/exe", "plugin_test", "-tc=*(child)*", "--no-skip", static_cast<char*>(nullptr));
    _exit(127);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  const std::string warnings = ReadFile(output);
  CAPTURE(warnings);
  CHECK(std::count(warnings.begin(), warnings.end(), '\n') == 2);
  CHECK(warnings.find("PACKALLOC_PLUGINS: plugin '/nonexistent.so'") != std::string::npos);
  CHECK(warnings.find("4711") != std::string::npos);
}

#if !PACKALLOC_WITH_TSAN
TEST_CASE("a child that is forked while another thread loads PACKALLOC_PLUGINS does without them") {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    setenv("PACKALLOC_PLUGINS", Wrong("waits").c_str(), 1);
    if (freopen("/dev/null", "w", stderr) == nullptr || freopen("/dev/null", "w", stdout) == nullptr) _exit(126);
    execl("/proc/self/exe", "plugin_test", "-tc=*(child that forks)*", "--no-skip", static_cast<char*>(nullptr));
    _exit(127);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

TEST_CASE("(child that forks) with PACKALLOC_PLUGINS set" * doctest::skip()) {
  int inside[2];
  int go_on[2];
  REQUIRE(pipe(inside) == 0);
  REQUIRE(pipe(go_on) == 0);
  // Where the plugin says that it is being loaded, and where it waits.
  setenv("PLUGIN_INSIDE", std::to_string(inside[1]).c_str(), 1);
  setenv("PLUGIN_GO_ON", std::to_string(go_on[0]).c_str(), 1);
  std::thread loader([&] {
    CHECK(Open("PWAITS").status().code() == absl::StatusCode::kInternal);
    close(inside[1]);
  });
  char byte = 0;
  REQUIRE(read(inside[0], &byte, 1) == 1);
  CHECK(HoldsInChild([] { return Open("CPU").ok() && Open("PWAITS").status().code() == absl::StatusCode::kNotFound; }));
  REQUIRE(write(go_on[1], &byte, 1) == 1);
  loader.join();
}
#endif

TEST_CASE("(child) with PACKALLOC_PLUGINS set" * doctest::skip()) {
  const auto device = Default();
  REQUIRE(device.ok());
  CHECK(device->name() == "CHEAP");
}

}  // namespace
}  // namespace packalloc
