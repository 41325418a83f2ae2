#include "lib/checks.h"

#include <cstddef>
#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "lib/checked_math.h"
#include "packalloc/buffer_spec.h"

namespace packalloc {

absl::Status CheckRequest(absl::string_view who, std::size_t nbytes, const BufferSpec& spec) {
  if (absl::Status valid = ValidateSpec(spec); !valid.ok()) return valid;
  constexpr std::size_t kMost = std::numeric_limits<std::ptrdiff_t>::max();
  if (nbytes > kMost) {
    return absl::InvalidArgumentError(
        absl::StrCat(who, ": alloc of ", nbytes, " bytes: no object is larger than ", kMost, " bytes"));
  }
  if (!spec.external_ptr.has_value()) return absl::OkStatus();
  const auto hex = absl::Hex(*spec.external_ptr);
  if (spec.alignment != 0 && *spec.external_ptr % spec.alignment != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(who, ": external_ptr 0x", hex, " is not aligned to ", spec.alignment, " bytes"));
  }
  if (spec.zero) {
    return absl::InvalidArgumentError(
        absl::StrCat(who, ": zero would overwrite the memory of external_ptr; ask for one of the two"));
  }
  if (!CheckedAdd<std::uintptr_t>(*spec.external_ptr, nbytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat(who, ": ", nbytes, " bytes at external_ptr 0x", hex, " pass the end of the address space"));
  }
  return absl::OkStatus();
}

absl::Status CheckFreeSize(absl::string_view who, std::size_t nbytes, std::size_t buffer_bytes) {
  if (nbytes == buffer_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(who, ": free with ", nbytes, " bytes of a buffer that was allocated with ", buffer_bytes));
}

absl::Status CheckCopy(absl::string_view who, std::size_t nbytes, std::size_t buffer_bytes) {
  if (nbytes <= buffer_bytes) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat(who, " of ", nbytes, " bytes, but the buffer has ", buffer_bytes));
}

absl::Status CheckView(absl::string_view who, std::size_t nbytes, std::size_t byte_offset, std::size_t buffer_bytes) {
  if (InRange(byte_offset, nbytes, buffer_bytes)) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat(who, ": a view of ", nbytes, " bytes at byte offset ", byte_offset,
                                            " does not fit a buffer of ", buffer_bytes, " bytes"));
}

}  // namespace packalloc
