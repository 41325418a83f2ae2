// Sizes, numbers and flags, from text and from the environment: a value is the one that was written, or an error.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/strings/match.h"
#include "lib/env.h"
#include "lib/parse.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto number = packalloc::ParseUint64(text);
  const auto bytes = packalloc::ParseBytes(text);
  const auto real = packalloc::ParseDouble(text);
  const auto flag = packalloc::ParseFlag(text);
  if (number.ok()) {
    const std::string zeros(text.size() - std::min(text.size(), std::to_string(*number).size()), '0');
    if (text != zeros + std::to_string(*number)) std::abort();
    if (!bytes.ok() || *bytes != *number || !real.ok()) std::abort();
  }
  if (bytes.ok() && !number.ok() && *bytes % 1024 != 0 && !absl::EndsWithIgnoreCase(text, "B")) std::abort();
  if (real.ok() && !(*real - *real == 0)) std::abort();  // infinite, or no number
  if (flag.ok() && real.ok() && *flag != (*real != 0)) std::abort();

  // Each malformed value is a warning; that they are all told apart is kept for a while.
  static int warnings = 0;
  if (text.find('\0') != std::string::npos || (!bytes.ok() && ++warnings > 1000)) return 0;
  setenv("PACKALLOC_FUZZED", text.c_str(), 1);
  if (packalloc::EnvBytes("PACKALLOC_FUZZED", 77) != bytes.value_or(77)) std::abort();
  if (packalloc::EnvString("PACKALLOC_FUZZED").has_value() == text.empty()) std::abort();
  return 0;
}
