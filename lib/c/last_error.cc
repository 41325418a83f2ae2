#include "lib/c/last_error.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"

namespace packalloc {
namespace {

// Plain bytes: nothing to allocate when memory has run out, nothing to destroy when a thread or the process ends.
constexpr std::size_t kCapacity = 2048;
thread_local char last_error[kCapacity];

// Appends as much of `text` as there is room for, in whole UTF-8 characters; gives the new length.
std::size_t Append(std::size_t length, absl::string_view text) noexcept {
  std::size_t taken = std::min(text.size(), kCapacity - 1 - length);
  if (taken < text.size()) {
    while (taken > 0 && (static_cast<unsigned char>(text[taken]) & 0xC0u) == 0x80u) --taken;
  }
  std::memcpy(last_error + length, text.data(), taken);
  last_error[length + taken] = '\0';
  return length + taken;
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
