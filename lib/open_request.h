// What the entry points of the backends share: reading the options and the target of an OpenRequest.
#ifndef PACKALLOC_LIB_OPEN_REQUEST_H_
#define PACKALLOC_LIB_OPEN_REQUEST_H_

#include <algorithm>
#include <any>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "lib/parse.h"
#include "packalloc/backend.h"

namespace packalloc {

// The backend's own options, default ones where none were given, INVALID_ARGUMENT where they are another type's.
template <typename Options>
absl::StatusOr<Options> OptionsOf(const OpenRequest& request, absl::string_view backend) {
  if (!request.options.has_value()) return Options{};
  if (const auto* options = std::any_cast<Options>(&request.options)) return *options;
  return absl::InvalidArgumentError(absl::StrCat("the options given for ", backend, " are not its options struct"));
}

// The canonical target of a backend with one device: "" for "" and "0"; NOT_FOUND for another number, INVALID_ARGUMENT
// for anything else.
inline absl::StatusOr<std::string> OnlyDevice(absl::string_view target, absl::string_view backend) {
  std::uint64_t index = 0;
  if (target.empty()) return std::string();
  if (!std::all_of(target.begin(), target.end(), absl::ascii_isdigit) || !absl::SimpleAtoi(target, &index)) {
    return absl::InvalidArgumentError(absl::StrCat(Quoted(absl::StrCat(backend, ":", target)),
                                                   " is not a device: ", backend, " takes no more than an index"));
  }
  if (index != 0) {
    return absl::NotFoundError(absl::StrCat("there is no ", backend, ":", index, ", only ", backend, ":0"));
  }
  return std::string();
}

}  // namespace packalloc

#endif  // PACKALLOC_LIB_OPEN_REQUEST_H_
