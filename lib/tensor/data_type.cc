#include "packalloc/tensor/data_type.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "lib/tensor/tensor_bytes.h"

namespace packalloc {
namespace {

// Numbers of bits, each a bit of its own, so that asking for one is a look-up.
using Widths = std::array<std::uint64_t, 4>;
constexpr Widths Bits(std::initializer_list<unsigned> allowed) {
  Widths widths{};
  for (const unsigned bits : allowed) widths[bits / 64] |= std::uint64_t{1} << (bits % 64);
  return widths;
}

struct Kind {
  absl::string_view name;
  bool name_has_bits;
  Widths widths;
  bool Allows(std::uint8_t bits) const { return (widths[bits / 64] >> (bits % 64) & 1) != 0; }
};

// By code.
constexpr std::array<Kind, 18> kKinds = {{
    {"int", false, Bits({1, 2, 4, 8, 16, 32, 64, 128})},
    {"uint", false, Bits({1, 2, 4, 8, 16, 32, 64, 128})},
    {"float", false, Bits({16, 32, 64, 80, 96, 128})},
    {"handle", false, Bits({32, 64})},
    {"bfloat", false, Bits({16})},
    {"complex", false, Bits({32, 64, 128})},
    {"bool", true, Bits({8})},
    {"float8_e3m4", true, Bits({8})},
    {"float8_e4m3", true, Bits({8})},
    {"float8_e4m3b11fnuz", true, Bits({8})},
    {"float8_e4m3fn", true, Bits({8})},
    {"float8_e4m3fnuz", true, Bits({8})},
    {"float8_e5m2", true, Bits({8})},
    {"float8_e5m2fnuz", true, Bits({8})},
    {"float8_e8m0fnu", true, Bits({8})},
    {"float6_e2m3fn", true, Bits({6})},
    {"float6_e3m2fn", true, Bits({6})},
    {"float4_e2m1fn", true, Bits({4})},
}};

absl::Status TooLarge(absl::Span<const std::int64_t> shape, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("a tensor of shape (", absl::StrJoin(shape, ", "), ") has more than ", what));
}

}  // namespace

std::string ToString(DataType dtype) {
  std::string text =
      dtype.code < kKinds.size() ? std::string(kKinds[dtype.code].name) : absl::StrCat("code", int{dtype.code}, "_");
  if (dtype.code >= kKinds.size() || !kKinds[dtype.code].name_has_bits) absl::StrAppend(&text, int{dtype.bits});
  if (dtype.lanes != 1) absl::StrAppend(&text, "x", dtype.lanes);
  return text;
}

absl::Status ValidateDataType(DataType dtype) {
  if (dtype.code >= kKinds.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("data type code ", int{dtype.code}, " is not one of DLPack's 0 to ", kKinds.size() - 1));
  }
  const Kind& kind = kKinds[dtype.code];
  if (!kind.Allows(dtype.bits)) {
    return absl::InvalidArgumentError(
        absl::StrCat("data type ", kind.name, " (code ", int{dtype.code}, ") cannot have ", int{dtype.bits}, " bits"));
  }
  if (dtype.lanes == 0) {
    return absl::InvalidArgumentError(absl::StrCat("data type ", kind.name, int{dtype.bits}, " has no lanes"));
  }
  return absl::OkStatus();
}

namespace {

bool IsValid(DataType dtype) {
  return dtype.code < kKinds.size() && kKinds[dtype.code].Allows(dtype.bits) && dtype.lanes != 0;
}

// Negative where a dimension is negative or the product is above INT64_MAX. (A std::optional is written in two parts
// and read in one, which stalls.)
inline std::int64_t Product(absl::Span<const std::int64_t> shape) {
  std::int64_t product = 1;
  bool overflow = false;
  bool has_zero = false;
  for (const std::int64_t dimension : shape) {
    if (dimension < 0) return -1;
    has_zero = has_zero || dimension == 0;
    overflow = __builtin_mul_overflow(product, dimension, &product) || overflow;
  }
  if (has_zero) return 0;
  return overflow ? -1 : product;
}

}  // namespace

std::size_t TryTensorBytes(absl::Span<const std::int64_t> shape, DataType dtype, SubByte sub_byte) {
  const std::int64_t elements = Product(shape);
  if (elements < 0 || !IsValid(dtype)) return kNoTensorBytes;
  const unsigned lane_bits = sub_byte == SubByte::kPadded && dtype.bits < 8 ? 8 : dtype.bits;
  const std::uint64_t element_bits = std::uint64_t{lane_bits} * dtype.lanes;
  // Whole bytes where it can be, so that the number of bits need not fit into 64.
  const bool whole_bytes = element_bits % 8 == 0;
  std::uint64_t nbytes = 0;
  if (__builtin_mul_overflow(elements, whole_bytes ? element_bits / 8 : element_bits, &nbytes)) return kNoTensorBytes;
  if (!whole_bytes) nbytes = nbytes / 8 + (nbytes % 8 != 0);
  return nbytes > std::uint64_t{std::numeric_limits<std::ptrdiff_t>::max()} ? kNoTensorBytes : nbytes;
}

absl::StatusOr<std::int64_t> NumElements(absl::Span<const std::int64_t> shape) {
  if (const std::int64_t product = Product(shape); product >= 0) return product;
  if (std::any_of(shape.begin(), shape.end(), [](std::int64_t dimension) { return dimension < 0; })) {
    return absl::InvalidArgumentError(
        absl::StrCat("the shape (", absl::StrJoin(shape, ", "), ") has a negative dimension"));
  }
  return TooLarge(shape, "2^63-1 elements");
}

absl::StatusOr<std::size_t> TensorBytes(absl::Span<const std::int64_t> shape, DataType dtype, SubByte sub_byte) {
  if (const std::size_t nbytes = TryTensorBytes(shape, dtype, sub_byte); nbytes != kNoTensorBytes) return nbytes;
  if (absl::Status valid = ValidateDataType(dtype); !valid.ok()) return valid;
  if (const absl::StatusOr<std::int64_t> elements = NumElements(shape); !elements.ok()) return elements.status();
  return TooLarge(shape, absl::StrCat("PTRDIFF_MAX bytes of ", ToString(dtype)));
}

}  // namespace packalloc
