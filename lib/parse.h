// Numbers from text, the same under every locale, the whole text or nothing: no leading blanks, no sign where the type
// has none, no wrap-around. Every size, flag and ratio that a person or a file gives goes through here.
//
//   absl::StatusOr<std::uint64_t> limit = ParseBytes("64MiB");   // 67108864
#ifndef PACKALLOC_LIB_PARSE_H_
#define PACKALLOC_LIB_PARSE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace packalloc {

// Each answers INVALID_ARGUMENT with a sentence that quotes the text and says what would be right. Thread-safe.

// Decimal digits only.
absl::StatusOr<std::uint64_t> ParseUint64(absl::string_view text);

// A whole number of bytes, or one followed by B, KiB, MiB, GiB or TiB (upper or lower case): "1048576", "1MiB".
absl::StatusOr<std::uint64_t> ParseBytes(absl::string_view text);

// A finite decimal number with a point: "0.125", "-1e-3".
absl::StatusOr<double> ParseDouble(absl::string_view text);

// 1, true, yes, on or 0, false, no, off (upper or lower case).
absl::StatusOr<bool> ParseFlag(absl::string_view text);

// `text` for a message: in quotes, cut where long, with what is not printable escaped.
std::string Quoted(absl::string_view text);

// `text`, whole, for a terminal: control characters and what is not UTF-8 are escaped ("\x1b"), line ends too; all else
// stays. A message that holds names from outside may go through it more than once.
std::string Printable(absl::string_view text);

}  // namespace packalloc

#endif  // PACKALLOC_LIB_PARSE_H_
