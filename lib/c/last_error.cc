#include "lib/c/last_error.h"

#include <cstddef>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "lib/utf8.h"

namespace packalloc {
namespace {

// Plain bytes: nothing to allocate when memory has run out, nothing to destroy when a thread or the process ends.
constexpr std::size_t kCapacity = 2048;
thread_local char last_error[kCapacity];

// Appends as much of `text` as there is room for, in whole characters, with ? for each byte that is not UTF-8; gives
// the new length.
std::size_t Append(std::size_t length, absl::string_view text) noexcept {
  while (!text.empty()) {
    const std::size_t character = Utf8Length(text);
    const absl::string_view shown = character == 0 ? "?" : text.substr(0, character);
    if (shown.size() > kCapacity - 1 - length) break;
    std::memcpy(last_error + length, shown.data(), shown.size());
    length += shown.size();
    text.remove_prefix(shown.size());
  }
  last_error[length] = '\0';
  return length;
}

}  // namespace

packalloc_status Report(absl::StatusCode code, absl::string_view message, absl::string_view more) noexcept {
  Append(Append(0, message.empty() ? "no reason was given" : message), more);
  return static_cast<packalloc_status>(code);
}

packalloc_status Report(const absl::Status& status) noexcept {
  return status.ok() ? packalloc_status{PACKALLOC_OK} : Report(status.code(), status.message());
}

const char* LastError() noexcept { return last_error; }

absl::Status StatusFromC(packalloc_status status, absl::string_view who, absl::string_view function, const char* said) {
  if (status == PACKALLOC_OK) return absl::OkStatus();
  const bool says_why = said != nullptr && *said != '\0';
  if (status < 0 || status > PACKALLOC_UNAUTHENTICATED) {
    return absl::InternalError(absl::StrCat(who, ": ", function, " answered ", status, ", which is no packalloc_status",
                                            says_why ? ": " : "", says_why ? said : ""));
  }
  return {static_cast<absl::StatusCode>(status),
          absl::StrCat(who, ": ", function, ": ", says_why ? said : "(it says no more)")};
}

}  // namespace packalloc
