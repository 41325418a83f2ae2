#include "lib/env.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "lib/parse.h"

namespace packalloc {
namespace {

template <typename T>
T Read(const char* variable, T default_value, absl::StatusOr<T> (*parse)(absl::string_view), absl::string_view shown) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return default_value;
  absl::StatusOr<T> value = parse(text);
  if (value.ok()) return *value;
  WarnOnce(
      absl::StrCat("environment variable ", variable, ": ", value.status().message(), "; using the default, ", shown));
  return default_value;
}

}  // namespace

std::uint64_t EnvBytes(const char* variable, std::uint64_t default_value) {
  return Read(variable, default_value, &ParseBytes, absl::StrCat(default_value, " bytes"));
}

double EnvDouble(const char* variable, double default_value) {
  return Read(variable, default_value, &ParseDouble, absl::StrCat(default_value));
}

bool EnvFlag(const char* variable, bool default_value) {
  return Read(variable, default_value, &ParseFlag, default_value ? "1" : "0");
}

std::optional<std::string> EnvString(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return std::nullopt;
  return std::string(text);
}

void WarnOnce(absl::string_view message) noexcept {
  // A list that only grows, without a lock: a forked child would find that locked for ever.
  struct Said {
    std::string message;
    Said* before;
  };
  static constinit std::atomic<Said*> last{nullptr};
  try {
    auto said = std::make_unique<Said>(Said{std::string(message), nullptr});
    const Said* checked = nullptr;
    Said* newest = last.load(std::memory_order_acquire);
    do {
      for (const Said* other = newest; other != checked; other = other->before) {
        if (other->message == message) return;
      }
      checked = newest;
      said->before = newest;
    } while (!last.compare_exchange_weak(newest, said.get(), std::memory_order_acq_rel));
    const std::string& shown = said.release()->message;
    // One write, so that lines of several threads do not mix.
    const std::string line = absl::StrCat("packalloc: warning: ", Printable(shown), "\n");
    std::fwrite(line.data(), 1, line.size(), stderr);
  } catch (const std::exception&) {
    std::fputs("packalloc: warning: out of memory while writing a warning\n", stderr);
  }
}

}  // namespace packalloc
