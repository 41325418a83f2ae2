#include "test/fake_cuda/settings.h"

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace fake_cuda {
namespace {

std::string_view Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

void Complain(const char* name, std::string_view value) {
  std::fprintf(stderr, "fake_cuda: %s=%.*s is not understood and ignored\n", name, static_cast<int>(value.size()),
               value.data());
}

template <typename T>
bool Number(std::string_view text, T* out) {
  T value{};
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return false;
  *out = value;
  return true;
}

template <typename T>
void ReadNumber(const char* name, T least, T most, T* out) {
  std::string_view value = Variable(name);
  if (value.empty()) return;
  T number{};
  if (Number(value, &number) && number >= least && number <= most) {
    *out = number;
  } else {
    Complain(name, value);
  }
}

// Sets *out to the choice whose name the variable has.
template <typename T>
void ReadChoice(const char* name, std::initializer_list<std::pair<std::string_view, T>> choices, T* out) {
  std::string_view value = Variable(name);
  if (value.empty()) return;
  for (const auto& [word, choice] : choices) {
    if (word == value) {
      *out = choice;
      return;
    }
  }
  Complain(name, value);
}

// Calls each(part) for every part between separators; each returns false for what it does not understand.
template <typename Each>
void ReadList(const char* name, Each each) {
  std::string_view rest = Variable(name);
  while (!rest.empty()) {
    std::string_view part = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
    if (!each(part)) Complain(name, part);
  }
}

bool ReadFailure(std::string_view part, std::vector<Failure>* failures) {
  size_t first = part.find(':'), second = part.find(':', first + 1);
  if (first == std::string_view::npos || second == std::string_view::npos) return false;
  Failure failure;
  failure.function = std::string(part.substr(0, first));
  if (failure.function.empty() || !Number(part.substr(first + 1, second - first - 1), &failure.nth) ||
      !Number(part.substr(second + 1), &failure.code)) {
    return false;
  }
  failures->push_back(std::move(failure));
  return true;
}

}  // namespace

Settings::Settings() {
  for (size_t& bytes : capacity) bytes = size_t{1} << 40;
  for (int device = 0; device < kMaxDevices; ++device) {
    for (int peer = device + 1; peer < kMaxDevices; ++peer) peers.emplace(device, peer);
  }
}

Settings SettingsFromEnvironment() {
  Settings settings;
  ReadChoice("FAKE_CUDA_SCHEDULE", {{"lazy", FAKE_CUDA_LAZY}, {"eager", FAKE_CUDA_EAGER}, {"worker", FAKE_CUDA_WORKER}},
             &settings.schedule);
  ReadChoice("FAKE_CUDA_PAGEABLE", {{"late", FAKE_CUDA_PAGEABLE_LATE}, {"early", FAKE_CUDA_PAGEABLE_EARLY}},
             &settings.pageable);
  ReadChoice("FAKE_CUDA_MODE",
             {{"normal", FAKE_CUDA_MODE_NORMAL},
              {"4", FAKE_CUDA_MODE_DEINITIALIZED},
              {"34", FAKE_CUDA_MODE_STUB},
              {"100", FAKE_CUDA_MODE_NO_DEVICE},
              {"803", FAKE_CUDA_MODE_MISMATCH},
              {"exit", FAKE_CUDA_MODE_GONE_AT_EXIT}},
             &settings.mode);
  ReadChoice<std::string>("FAKE_CUDA_LEAKS", {{"all", "all"}, {"objects", "objects"}, {"none", "none"}},
                          &settings.leaks);
  ReadNumber("FAKE_CUDA_VERSION", 0, 1000000, &settings.version);
  ReadNumber("FAKE_CUDA_DEVICES", 0, kMaxDevices, &settings.devices);
  size_t capacity = settings.capacity[0];
  ReadNumber("FAKE_CUDA_CAPACITY", size_t{0}, SIZE_MAX, &capacity);
  for (size_t& bytes : settings.capacity) bytes = capacity;
  ReadNumber("FAKE_CUDA_PINNED", size_t{0}, SIZE_MAX, &settings.pinned_capacity);
  ReadNumber("FAKE_CUDA_EXIT_ON_VIOLATION", 0, 255, &settings.exit_on_violation);
  ReadChoice("FAKE_CUDA_ABORT", {{"0", false}, {"1", true}}, &settings.abort_on_violation);
  ReadChoice("FAKE_CUDA_QUIET", {{"0", false}, {"1", true}}, &settings.quiet);
  if (!Variable("FAKE_CUDA_PEERS").empty()) settings.peers.clear();
  ReadList("FAKE_CUDA_PEERS", [&](std::string_view part) {
    size_t arrow = part.find('>');
    int device = 0, peer = 0;
    if (part == "none") return true;
    if (arrow == std::string_view::npos || !Number(part.substr(0, arrow), &device) ||
        !Number(part.substr(arrow + 1), &peer)) {
      return false;
    }
    settings.peers.emplace(device, peer);
    return true;
  });
  ReadList("FAKE_CUDA_FAIL", [&](std::string_view part) { return ReadFailure(part, &settings.failures); });
  return settings;
}

bool KillsContext(int code) {
  return code == 226 || code == 700 || code == 702 || (code >= 714 && code <= 719) || code == 721 || code == 810 ||
         code == 911;
}

}  // namespace fake_cuda
