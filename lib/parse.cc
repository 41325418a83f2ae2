#include "lib/parse.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "lib/checked_math.h"
#include "lib/utf8.h"

namespace packalloc {
namespace {

struct Unit {
  absl::string_view name;
  std::uint64_t bytes;
};
constexpr Unit kUnits[] = {{"KiB", std::uint64_t{1} << 10},
                           {"MiB", std::uint64_t{1} << 20},
                           {"GiB", std::uint64_t{1} << 30},
                           {"TiB", std::uint64_t{1} << 40},
                           {"B", 1}};

absl::Status Refuse(absl::string_view text, absl::string_view wanted) {
  return absl::InvalidArgumentError(absl::StrCat(Quoted(text), " is not ", wanted));
}

// std::from_chars reads "-1" into an unsigned number as an error and never skips blanks.
template <typename Number>
std::errc Read(absl::string_view text, Number& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc()) return error;
  return end == text.data() + text.size() ? std::errc() : std::errc::invalid_argument;
}

}  // namespace

std::string Quoted(absl::string_view text) {
  constexpr std::size_t kMost = 60;
  const bool cut = text.size() > kMost;
  return absl::StrCat("'", absl::CHexEscape(text.substr(0, kMost)), cut ? "..." : "", "'");
}

std::string Printable(absl::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t length = Utf8Length(text);
    const absl::string_view character = text.substr(0, std::max<std::size_t>(length, 1));
    const auto code = static_cast<unsigned char>(character.back());
    // Below a space, DEL, and those of two bytes from U+0080 to U+009F.
    const bool control =
        length == 1 ? code < 0x20 || code == 0x7f : length == 2 && character[0] == '\xc2' && code < 0xa0;
    if (length == 0 || control) {
      for (const char byte : character)
        absl::StrAppend(&out, "\\x", absl::Hex(static_cast<unsigned char>(byte), absl::kZeroPad2));
    } else {
      absl::StrAppend(&out, character);
    }
    text.remove_prefix(character.size());
  }
  return out;
}

absl::StatusOr<std::uint64_t> ParseUint64(absl::string_view text) {
  std::uint64_t value = 0;
  const std::errc error = Read(text, value);
  if (error == std::errc::result_out_of_range) {
    return Refuse(text, absl::StrCat("a number up to ", std::numeric_limits<std::uint64_t>::max()));
  }
  if (error != std::errc()) return Refuse(text, "a whole number (decimal digits only)");
  return value;
}

absl::StatusOr<std::uint64_t> ParseBytes(absl::string_view text) {
  constexpr absl::string_view kWanted = "a size: a whole number of bytes, or one with KiB, MiB, GiB or TiB";
  absl::string_view digits = text;
  std::uint64_t unit = 1;
  for (const Unit& candidate : kUnits) {
    if (absl::EndsWithIgnoreCase(text, candidate.name)) {
      digits.remove_suffix(candidate.name.size());
      unit = candidate.bytes;
      break;
    }
  }
  std::uint64_t count = 0;
  const std::errc error = Read(digits, count);
  if (error == std::errc::invalid_argument) return Refuse(text, kWanted);
  const std::optional<std::uint64_t> bytes = CheckedMul(count, unit);
  if (error != std::errc() || !bytes) {
    return Refuse(text, absl::StrCat("a size up to ", std::numeric_limits<std::uint64_t>::max(), " bytes"));
  }
  return *bytes;
}

absl::StatusOr<double> ParseDouble(absl::string_view text) {
  double value = 0;
  if (Read(text, value) != std::errc() || !std::isfinite(value)) {
    return Refuse(text, "a number (decimal, with a point: 0.125)");
  }
  return value;
}

absl::StatusOr<bool> ParseFlag(absl::string_view text) {
  const auto is = [text](absl::string_view word) { return absl::EqualsIgnoreCase(text, word); };
  if (is("1") || is("true") || is("yes") || is("on")) return true;
  if (is("0") || is("false") || is("no") || is("off")) return false;
  return Refuse(text, "a flag: 1, true, yes, on, or 0, false, no, off");
}

}  // namespace packalloc
