// Settings from environment variables. A variable that is not set gives the default; one that cannot be read gives the
// default and one warning on stderr per variable and value, never a silent 0 or 2^64-1. The same under every locale.
//
//   const std::uint64_t limit = EnvBytes("PACKALLOC_STAGING_BYTES", 4 << 20);   // "8MiB"
//   const bool keep = EnvFlag("LRU", true);                                      // LRU=0
//   if (std::optional<std::string> path = EnvString("PACKALLOC_LIBCUDA")) Load(*path);
#ifndef PACKALLOC_LIB_ENV_H_
#define PACKALLOC_LIB_ENV_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace packalloc {

// What the text may look like is in lib/parse.h. Thread-safe, as long as nobody changes the environment meanwhile. A
// variable that is set but empty is malformed for these three.
std::uint64_t EnvBytes(const char* variable, std::uint64_t default_value);
double EnvDouble(const char* variable, double default_value);
bool EnvFlag(const char* variable, bool default_value);

// The variable's text; nullopt where it is not set or empty, for `VARIABLE= command` is how a shell user unsets one.
std::optional<std::string> EnvString(const char* variable);

// "packalloc: warning: MESSAGE" on stderr (as Printable), once in the process for the same message. For what a caller
// cannot be told by a status. Thread-safe; never fails or throws.
void WarnOnce(absl::string_view message) noexcept;

}  // namespace packalloc

#endif  // PACKALLOC_LIB_ENV_H_
