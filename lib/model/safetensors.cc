#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/checked_math.h"
#include "lib/model/json.h"
#include "lib/parse.h"
#include "packalloc/model_file.h"

namespace packalloc {
namespace {

using nlohmann::json;

std::optional<std::uint64_t> BitsOf(std::string_view dtype) {
  static constexpr std::pair<std::string_view, std::uint64_t> kBits[] = {
      {"BOOL", 8},        {"U8", 8},          {"I8", 8},    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8},
      {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F4", 4},    {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"I16", 16},
      {"U16", 16},        {"F16", 16},        {"BF16", 16}, {"I32", 32},    {"U32", 32},    {"F32", 32},
      {"C64", 64},        {"F64", 64},        {"I64", 64},  {"U64", 64}};
  for (const auto& [name, bits] : kBits) {
    if (name == dtype) return bits;
  }
  return std::nullopt;
}

// nullopt for anything but an integer from 0 to 2^64 - 1.
std::optional<std::uint64_t> AsUnsigned(const json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  return value.get<std::uint64_t>();
}

absl::Status Bad(const std::string& name, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("tensor ", Quoted(name), ": ", std::string(what)));
}

absl::StatusOr<SafetensorsEntry> ParseEntry(const std::string& name, const json& value) {
  if (!value.is_object()) return Bad(name, "its description is not an object");
  const auto dtype = value.find("dtype");
  const auto shape = value.find("shape");
  const auto offsets = value.find("data_offsets");
  if (dtype == value.end() || !dtype->is_string()) return Bad(name, "dtype is missing or not a string");
  if (shape == value.end() || !shape->is_array()) return Bad(name, "shape is missing or not an array");
  if (offsets == value.end() || !offsets->is_array() || offsets->size() != 2) {
    return Bad(name, "data_offsets is missing or not an array of two");
  }
  SafetensorsEntry entry{.name = name, .dtype = dtype->get<std::string>()};
  const std::optional<std::uint64_t> bits = BitsOf(entry.dtype);
  if (!bits) return Bad(name, absl::StrCat("unknown dtype ", Quoted(entry.dtype)));

  bool empty = false;
  for (const json& extent : *shape) {
    const std::optional<std::uint64_t> size = AsUnsigned(extent);
    if (!size) return Bad(name, "shape holds something that is not a size");
    empty = empty || *size == 0;
    entry.shape.push_back(*size);
  }
  std::optional<std::uint64_t> total_bits = *bits;
  for (const std::uint64_t size : entry.shape) {
    if (total_bits && !empty) total_bits = CheckedMul<std::uint64_t>(*total_bits, size);
  }
  if (empty) total_bits = 0;
  if (!total_bits) return Bad(name, absl::StrCat("a shape of [", absl::StrJoin(entry.shape, ", "), "] overflows"));
  if (*total_bits % 8 != 0) return Bad(name, "its elements do not fill whole bytes");

  const std::optional<std::uint64_t> begin = AsUnsigned((*offsets)[0]);
  const std::optional<std::uint64_t> end = AsUnsigned((*offsets)[1]);
  if (!begin || !end || *end < *begin) return Bad(name, "data_offsets are not a begin and an end");
  if (*end - *begin != *total_bits / 8) {
    return Bad(name, absl::StrCat("it has ", *end - *begin, " bytes, but ", entry.dtype, " [",
                                  absl::StrJoin(entry.shape, ", "), "] takes ", *total_bits / 8));
  }
  entry.begin = *begin;
  entry.end = *end;
  return entry;
}

// The bytes must be covered without holes and without overlap, as the format says.
absl::Status CheckCover(const std::vector<SafetensorsEntry>& tensors, std::uint64_t data_bytes) {
  std::uint64_t covered = 0;
  for (const SafetensorsEntry& entry : tensors) {
    if (entry.end > data_bytes) {
      return Bad(entry.name, absl::StrCat("its bytes ", entry.begin, " to ", entry.end,
                                          " pass the end of the file, which has ", data_bytes, " after the header"));
    }
    if (entry.begin < covered) return Bad(entry.name, "its bytes overlap those of the tensor before it");
    if (entry.begin > covered) {
      return Bad(entry.name, absl::StrCat("the ", entry.begin - covered, " bytes before it belong to no tensor"));
    }
    covered = entry.end;
  }
  if (covered == data_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the last ", data_bytes - covered, " bytes of the file belong to no tensor"));
}

}  // namespace

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(const std::string& text, std::uint64_t data_bytes) {
  absl::StatusOr<json> document = ParseJson(text);
  if (!document.ok())
    return absl::InvalidArgumentError(absl::StrCat("the header is bad: ", document.status().message()));
  if (!document->is_object()) return absl::InvalidArgumentError("the header is bad: it is not a JSON object");
  SafetensorsHeader header;
  for (const auto& [name, value] : document->items()) {
    if (name == "__metadata__") {
      if (value.is_null()) continue;
      if (!value.is_object()) return absl::InvalidArgumentError("__metadata__ is not an object");
      for (const auto& [key, text_value] : value.items()) {
        if (!text_value.is_string())
          return absl::InvalidArgumentError("__metadata__ holds something that is not a string");
        header.metadata.emplace_back(key, text_value.get<std::string>());
      }
      continue;
    }
    absl::StatusOr<SafetensorsEntry> entry = ParseEntry(name, value);
    if (!entry.ok()) return entry.status();
    header.tensors.push_back(*std::move(entry));
  }
  std::sort(header.tensors.begin(), header.tensors.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  if (absl::Status covered = CheckCover(header.tensors, data_bytes); !covered.ok()) return covered;
  return header;
}

}  // namespace packalloc
