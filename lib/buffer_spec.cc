#include "packalloc/buffer_spec.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/checked_math.h"

namespace packalloc {

absl::Status ValidateSpec(const BufferSpec& spec) {
  if (spec.alignment != 0 && (!IsPowerOfTwo(spec.alignment) || spec.alignment > kMaxAlignment)) {
    return absl::InvalidArgumentError(absl::StrCat("alignment ", spec.alignment,
                                                   " is not a power of two between 1 and ", kMaxAlignment,
                                                   "; 0 asks for the backend's default"));
  }
  if (spec.external_ptr.has_value() && *spec.external_ptr == 0) {
    return absl::InvalidArgumentError("external_ptr is null; leave it unset to allocate memory");
  }
  return absl::OkStatus();
}

std::string ToString(const BufferSpec& spec) {
  std::vector<std::string> parts;
  if (spec.uncached) parts.emplace_back("uncached");
  if (spec.cpu_access) parts.emplace_back("cpu_access");
  if (spec.host) parts.emplace_back("host");
  if (spec.nolru) parts.emplace_back("nolru");
  if (spec.zero) parts.emplace_back("zero");
  if (spec.alignment != 0) parts.push_back(absl::StrCat("alignment=", spec.alignment));
  if (spec.external_ptr) parts.push_back(absl::StrCat("external_ptr=0x", absl::Hex(*spec.external_ptr)));
  return absl::StrCat("{", absl::StrJoin(parts, " "), "}");
}

}  // namespace packalloc
