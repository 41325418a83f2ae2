// Runs the command itself, as a user does.
#include "tools/command.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "packalloc/backends/cpu.h"
#include "packalloc/registry.h"
#include "test/hostile_locale.h"
#include "test/temp_dir.h"

namespace packalloc {
namespace {

const std::string kMnist = std::string(PACKALLOC_TRACES) + "/mnist_train.csv";

struct Result {
  int status = -1;  // the exit status; -1 where a signal ended it
  std::string out;
  std::string err;
};

std::string Content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// `out` is where stdout goes: a path, or "" for closed.
Result RunTo(const std::string& out, std::vector<std::string> arguments,
             const std::vector<std::string>& variables = {}) {
  const TempDir directory;
  const std::string err = directory / "err";
  arguments.insert(arguments.begin(), PACKALLOC_COMMAND);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  std::vector<std::string> environment = variables;
  for (char** variable = environ; *variable != nullptr; ++variable) environment.emplace_back(*variable);
  std::vector<char*> envp;
  for (std::string& variable : environment) envp.push_back(variable.data());
  envp.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (out.empty()) {
    posix_spawn_file_actions_addclose(&actions, STDOUT_FILENO);
  } else {
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  }
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err.c_str(), O_WRONLY | O_CREAT, 0600);
  pid_t child = 0;
  REQUIRE(posix_spawn(&child, PACKALLOC_COMMAND, &actions, nullptr, argv.data(), envp.data()) == 0);
  posix_spawn_file_actions_destroy(&actions);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, "", Content(err)};
}

Result Run(const std::vector<std::string>& arguments, const std::vector<std::string>& variables = {}) {
  const TempDir directory;
  const std::string out = directory / "out";
  Result result = RunTo(out, arguments, variables);
  result.out = Content(out);
  return result;
}

long Lines(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

// Fails with one sentence on stderr and nothing on stdout.
void CheckFails(const Result& result, int status, const std::string& says) {
  CHECK(result.status == status);
  CHECK(result.out.empty());
  CHECK(Lines(result.err) == 1);
  CHECK_MESSAGE(result.err.find(says) != std::string::npos, result.err);
}

const std::vector<std::string> kKeys = {
    "allocations",      "hits",           "misses",   "evictions", "peak_live_bytes", "peak_held_bytes",
    "cached_bytes_end", "live_bytes_end", "ns_per_op"};

void CheckRecorded(const nlohmann::json& json) {
  CHECK(json["allocations"] == 2705);
  CHECK(json["hits"] == 2573);
  CHECK(json["misses"] == 132);
  CHECK(json["evictions"] == 0);
  CHECK(json["peak_live_bytes"] == 36798864);
  CHECK(json["peak_held_bytes"] == 36798944);
  CHECK(json["cached_bytes_end"] == 36797504);
  CHECK(json["live_bytes_end"] == 1440);
}

TEST_CASE("replay --json is a list of objects with these keys, also of one device") {
  const Result result = Run({"replay", kMnist, "--device", "CPU+lru", "--json"});
  REQUIRE(result.status == 0);
  CHECK(result.err.empty());
  const nlohmann::json list = nlohmann::json::parse(result.out);
  REQUIRE(list.is_array());
  REQUIRE(list.size() == 1);
  const nlohmann::json& json = list[0];
  CheckRecorded(json);
  CHECK(json.size() == kKeys.size() + 1);
  CHECK(json["device"] == "CPU+lru");
  for (const std::string& key : kKeys) CHECK(json[key].is_number());

  const nlohmann::json tight =
      nlohmann::json::parse(Run({"replay", "--json", "--device", "CPU+lru:max_bytes=16MiB", kMnist}).out).at(0);
  CHECK(tight["hits"] == 1294);
  CHECK(tight["misses"] == 1411);
  CHECK(tight["evictions"] == 1332);
  CHECK(tight["cached_bytes_end"] == 16695200);
}

TEST_CASE("replay prints a row for each number and a column for each device") {
  const Result one = Run({"replay", kMnist});
  CHECK(one.status == 0);
  CHECK(one.out.find("CPU") != std::string::npos);
  const Result two = Run({"replay", kMnist, "--device", "CPU", "--device", "CPU+lru"});
  REQUIRE(two.status == 0);
  CHECK(two.err.empty());
  for (const char* part : {"CPU+lru", "2705", "2573", "132", "95.1 %", "36798864", "36798944", "36797504", "1440",
                           "hit rate", "evictions", "ns per operation"}) {
    CAPTURE(part);
    CHECK(two.out.find(part) != std::string::npos);
  }
  const nlohmann::json list =
      nlohmann::json::parse(Run({"replay", kMnist, "--device", "CPU", "--device", "CPU+lru", "--json"}).out);
  REQUIRE(list.size() == 2);
  CHECK(list[0]["device"] == "CPU");
  CHECK(list[0]["hits"] == 0);
  CHECK(list[1]["device"] == "CPU+lru");
  CheckRecorded(list[1]);
}

TEST_CASE("devices lists the backends") {
  const Result text = Run({"devices"});
  CHECK(text.status == 0);
  CHECK(text.out.find("CPU") != std::string::npos);
  const Result result = Run({"devices", "--json"});
  REQUIRE(result.status == 0);
  bool cpu = false;
  for (const nlohmann::json& device : nlohmann::json::parse(result.out)) {
    CHECK(device["name"].is_string());
    CHECK(device["available"].is_boolean());
    CHECK(device.contains("reason") == !device["available"].get<bool>());
    if (device["name"] == "CPU") cpu = device["available"].get<bool>();
  }
  CHECK(cpu);
}

TEST_CASE("a bad trace is one sentence with file and line, and status 1") {
  const TempDir directory;
  const std::string header = "Thread,Time,Action,Pointer,Size,Stream\n";
  struct {
    std::string text;
    const char* says;
  } const cases[] = {
      {header + "1,0,free,0x1,8,0\n", "/t.csv:2: "},
      {header + "1,0,allocate,0x1,8,0\n1,0,allocate,0x1,8,0\n", "/t.csv:3: "},
      {header + "1,0,allocate,0x1,8,0\n1,0,free,0x1,9,0\n", "/t.csv:3: "},
      {header + "1,0,allocate,0x1,-8,0\n", "/t.csv:2: "},
      {header + "1,0,allocate,0x1,18446744073709551616,0\n", "/t.csv:2: "},
      {header + "1,0,allocate,0x1,1125899906842624,0\n", "/t.csv:2: "},
      {header + "1,0,allocate,0x1\n", "/t.csv:2: "},
      {header + "1,0,borrow,0x1,8,0\n", "/t.csv:2: "},
      {"", "/t.csv:1: "},
  };
  for (const auto& c : cases) {
    CAPTURE(c.text);
    const std::string path = directory.Write("t.csv", c.text);
    for (const char* device : {"CPU", "CPU+lru"}) {
      CheckFails(Run({"replay", path, "--device", device, "--json"}), 1, c.says);
      CheckFails(Run({"replay", path, "--device", device}), 1, c.says);
    }
  }
  CheckFails(Run({"replay", directory.path()}), 1, directory.path());
  CheckFails(Run({"replay", directory / "none"}), 1, "none");
  CheckFails(Run({"replay", "/dev/null"}), 1, "/dev/null");
}

TEST_CASE("a bad device is one sentence, and status 1") {
  for (const char* device : {"NOSUCH", "CPU+nosuch", "CPU+lru:max_bytes=-1", "CPU+lru:max_bytes=64MB", "CPU+",
                             "CPU+lru:policy=fifo", "CPU+lru:size=1", "CPU+lru:max_waste=0,5", "CPU:7"}) {
    CAPTURE(device);
    CheckFails(Run({"replay", kMnist, std::string("--device=") + device}), 1, "");
  }
}

TEST_CASE("wrong usage is status 2 and one line") {
  CheckFails(Run({}), 2, "--help");
  CheckFails(Run({"nosuch"}), 2, "--help");
  CheckFails(Run({"replay"}), 2, "FILE");
  CheckFails(Run({"replay", kMnist, "--device"}), 2, "--device");
  CheckFails(Run({"replay", kMnist, "--device="}), 2, "--device");
  CheckFails(Run({"devices", "--nosuch"}), 2, "--nosuch");
  CHECK(Run({"--help"}).status == 0);
  CHECK(Run({"replay", "--help"}).out.find("--device") != std::string::npos);
  CHECK(Lines(Run({"--version"}).out) == 1);
}

TEST_CASE("a stdout that takes nothing is an error, not a silence") {
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"devices"},
                                                    {"devices", "--json"},
                                                    {"replay", kMnist},
                                                    {"replay", kMnist, "--json"},
                                                    {"--help"},
                                                    {"--version"}}) {
    CAPTURE(arguments[0]);
    CheckFails(RunTo("/dev/full", arguments), 1, "stdout");
    CheckFails(RunTo("", arguments), 1, "stdout");
  }
}

TEST_CASE("garbage in the environment is a warning, and changes no number") {
  for (const char* text : {"", " ", "abc", "-1", "1e3", "64MB", "0.5", "1,5", "99999999999999999999"}) {
    CAPTURE(text);
    const Result result = Run({"replay", kMnist, "--device", "CPU+lru", "--json"},
                              {std::string("LRU=") + text, std::string("PACKALLOC_LAYERS=") + text});
    REQUIRE(result.status == 0);
    CheckRecorded(nlohmann::json::parse(result.out).at(0));
    CHECK_MESSAGE(result.err.find("LRU") != std::string::npos, result.err);
    if (*text != '\0') CHECK(result.err.find(std::string("PACKALLOC_LAYERS=") + text) != std::string::npos);
    CHECK(Lines(result.err) == (*text == '\0' ? 1 : 2));
  }
}

TEST_CASE("LRU=0 keeps nothing") {
  const nlohmann::json json =
      nlohmann::json::parse(Run({"replay", kMnist, "--device", "CPU+lru", "--json"}, {"LRU=0"}).out).at(0);
  CHECK(json["hits"] == 0);
  CHECK(json["cached_bytes_end"] == 0);
}

// A command's text, of this process.
std::string TextOf(std::vector<std::string> arguments) {
  Command chosen;
  CLI::App app("", "packalloc");
  AddDevicesCommand(app, chosen);
  AddReplayCommand(app, chosen);
  AddLoadCommand(app, chosen);
  std::reverse(arguments.begin(), arguments.end());
  app.parse(arguments);
  absl::StatusOr<std::string> text = chosen();
  REQUIRE_MESSAGE(text.ok(), text.status().ToString());
  return *text;
}

TEST_CASE("numbers are the same under every locale") {
  const HostileLocale locale;
  if (!locale.has_comma()) MESSAGE("no comma locale for C here: only the C++ one is tried");
  const std::string json = TextOf({"replay", kMnist, "--device", "CPU+lru:max_waste=0.125", "--json"});
  CHECK(nlohmann::json::parse(json).at(0)["peak_live_bytes"] == 36798864);
  const std::string table = TextOf({"replay", kMnist, "--device", "CPU+lru"});
  CHECK(table.find("36798864") != std::string::npos);
  CHECK(table.find("95.1 %") != std::string::npos);
  for (const nlohmann::json& device : nlohmann::json::parse(TextOf({"devices", "--json"})))
    CHECK(device["name"].is_string());

  const Result child = Run({"replay", kMnist, "--device", "CPU+lru", "--json"}, {"LC_ALL=de_DE.UTF-8"});
  CheckRecorded(nlohmann::json::parse(child.out).at(0));
}

TEST_CASE("names from outside do not reach the terminal as they are; programs get them whole") {
  const std::string evil = "\x1b[2J\n";
  Backend backend;
  backend.name = "ODD";
  backend.open = [](const OpenRequest&) { return Pack(CpuAllocator()); };
  backend.devices = [evil] {
    return std::vector<DeviceInfo>{{.name = "ODD:" + evil, .description = evil, .properties = {{evil, evil}}},
                                   {.name = "ODD:1", .available = false, .reason = evil}};
  };
  REQUIRE(Register(backend).ok());
  const TempDir directory;
  const std::string trace = directory.Write("t" + evil, Content(kMnist));
  const std::string escaped = "\\x1b[2J\\x0a";
  const std::string devices = TextOf({"devices"});
  CHECK(devices.find("ODD:" + escaped + "  " + escaped + ", " + escaped + " " + escaped + "\n") != std::string::npos);
  CHECK(devices.find("unavailable: " + escaped + "\n") != std::string::npos);
  const std::string device = "ODD:\"" + evil + "\"";
  const std::string replayed = TextOf({"replay", trace, "--device", device});
  const std::string loaded = TextOf({"load", trace, "--device", device});
  for (const std::string& text : {replayed, loaded}) CHECK(text.find(escaped) != std::string::npos);
  for (const std::string& text : {devices, replayed, loaded}) CHECK(text.find('\x1b') == std::string::npos);
  const nlohmann::json json = nlohmann::json::parse(TextOf({"devices", "--json"}));
  CHECK(std::count_if(json.begin(), json.end(), [&](const auto& d) { return d["name"] == "ODD:" + evil; }) == 1);

  CheckFails(Run({"load", directory / evil}), 1, escaped);
  CheckFails(Run({"load", trace, "--device", "CPU:" + evil}), 1, "\\x1b");
  CheckFails(Run({evil}), 2, "\\x1b");
  CheckFails(Run({"load", trace, "--" + evil}), 2, "\\x1b");
  CheckFails(Run({"load", trace, "--verify", "--device", "NULL"}), 1, "NULL keeps no bytes");
}

TEST_CASE("load says what was read and how, for people and for programs") {
  const TempDir directory;
  const std::string path = directory.Write("weights.bin", TextPattern(100000));
  const Result people = Run({"load", path, "--verify"});
  REQUIRE_MESSAGE(people.status == 0, people.err);
  CHECK(people.err.empty());
  for (const char* part : {"1 tensor,", "100000 bytes", "CPU", "GB/s", "page cache", "verified: CRC-32"}) {
    CAPTURE(part);
    CHECK(people.out.find(part) != std::string::npos);
  }
  const nlohmann::json json = nlohmann::json::parse(Run({"load", path, "--json", "--device", "CPU+lru"}).out);
  CHECK(json["bytes"] == 100000);
  CHECK(json["tensors"] == 1);
  CHECK(json["device"] == "CPU+lru");
  CHECK(json["verified"] == false);
  CheckFails(Run({"load", directory / "none"}), 1, directory / "none");
  CheckFails(Run({"load", directory.path()}), 1, "directory");
  CheckFails(Run({"load", directory.Write("x.safetensors", std::string(8, '\xff'))}), 1, "header");
  CheckFails(Run({"load"}), 2, "FILE");
}

}  // namespace
}  // namespace packalloc
