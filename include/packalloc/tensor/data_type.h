// DataType: the type of a tensor's elements, DLPack's DLDataType with the checks and sizes that it lacks.
//
//   packalloc::DataType dtype = packalloc::kFloat32;
//   packalloc::DataType vec4{packalloc::DataType::kFloat, 32, 4};            // float4: 16 bytes an element
//   absl::StatusOr<std::size_t> nbytes = packalloc::TensorBytes({3, 4}, dtype);     // 48
//   std::cout << packalloc::ToString(packalloc::kBfloat16);                         // "bfloat16"
//
//   packalloc::DataType from(dl_tensor.dtype);                               // any struct with code, bits and lanes
//   DLDataType to = std::bit_cast<DLDataType>(dtype);                        // the layouts are equal
#ifndef PACKALLOC_TENSOR_DATA_TYPE_H_
#define PACKALLOC_TENSOR_DATA_TYPE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace packalloc {

// `lanes` numbers of `bits` bits of one kind. Compares by value; has the layout of DLDataType.
struct DataType {
  // DLPack's DLDataTypeCode, all of version 1.3.
  enum Code : std::uint8_t {
    kInt = 0,
    kUInt = 1,
    kFloat = 2,
    kOpaqueHandle = 3,
    kBfloat = 4,
    kComplex = 5,  // `bits` of the real and the imaginary part together
    kBool = 6,     // 8 bits: DLPack's bool is a byte
    // As DLPack and the formats' papers write them. NOLINTBEGIN(readability-identifier-naming)
    kFloat8_e3m4 = 7,
    kFloat8_e4m3 = 8,
    kFloat8_e4m3b11fnuz = 9,
    kFloat8_e4m3fn = 10,
    kFloat8_e4m3fnuz = 11,
    kFloat8_e5m2 = 12,
    kFloat8_e5m2fnuz = 13,
    kFloat8_e8m0fnu = 14,
    kFloat6_e2m3fn = 15,
    kFloat6_e3m2fn = 16,
    kFloat4_e2m1fn = 17,
    // NOLINTEND(readability-identifier-naming)
  };

  std::uint8_t code = kFloat;
  std::uint8_t bits = 0;  // of one lane
  std::uint16_t lanes = 1;

  constexpr DataType() = default;
  constexpr DataType(std::uint8_t type_code, std::uint8_t lane_bits, std::uint16_t lane_count = 1)
      : code(type_code), bits(lane_bits), lanes(lane_count) {}
  // From DLPack's own struct.
  template <typename DlDataType>
  requires requires(const DlDataType& t) { t.code, t.bits, t.lanes; }
  constexpr explicit DataType(const DlDataType& t) : code(t.code), bits(t.bits), lanes(t.lanes) {}

  friend constexpr bool operator==(const DataType&, const DataType&) = default;
};
static_assert(sizeof(DataType) == 4);

inline constexpr DataType kBool{DataType::kBool, 8};
inline constexpr DataType kInt8{DataType::kInt, 8};
inline constexpr DataType kInt16{DataType::kInt, 16};
inline constexpr DataType kInt32{DataType::kInt, 32};
inline constexpr DataType kInt64{DataType::kInt, 64};
inline constexpr DataType kUInt8{DataType::kUInt, 8};
inline constexpr DataType kUInt16{DataType::kUInt, 16};
inline constexpr DataType kUInt32{DataType::kUInt, 32};
inline constexpr DataType kUInt64{DataType::kUInt, 64};
inline constexpr DataType kFloat16{DataType::kFloat, 16};
inline constexpr DataType kFloat32{DataType::kFloat, 32};
inline constexpr DataType kFloat64{DataType::kFloat, 64};
inline constexpr DataType kBfloat16{DataType::kBfloat, 16};
inline constexpr DataType kComplex64{DataType::kComplex, 64};
inline constexpr DataType kComplex128{DataType::kComplex, 128};

// INVALID_ARGUMENT, saying which field and why, for a code that DLPack 1.3 does not have, a number of bits that its
// kind cannot have (a bfloat16 of 8 bits), or no lanes. Integers have 1, 2, 4, ... 128 bits, floats 16, 32, 64, 80, 96
// or 128, complex numbers 32, 64 or 128. Thread-safe.
absl::Status ValidateDataType(DataType dtype);

// How elements of fewer than 8 bits lie in memory.
enum class SubByte {
  kPacked,  // one after the other, with no space between; the whole rounded up to a byte
  kPadded,  // each lane in a byte of its own (DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED)
};

// The product of `shape`: 1 for no dimensions, 0 where one of them is 0, whatever the others are. INVALID_ARGUMENT for
// a negative dimension and for a product above INT64_MAX.
absl::StatusOr<std::int64_t> NumElements(absl::Span<const std::int64_t> shape);

// Bytes of a compact tensor. INVALID_ARGUMENT as ValidateDataType and NumElements, and above PTRDIFF_MAX bytes.
absl::StatusOr<std::size_t> TensorBytes(absl::Span<const std::int64_t> shape, DataType dtype,
                                        SubByte sub_byte = SubByte::kPacked);

// "float32", "bool", "bfloat16", "float8_e4m3fn", "int4x8" (8 lanes); "code99_8" for a code that is not known.
std::string ToString(DataType dtype);

}  // namespace packalloc

#endif  // PACKALLOC_TENSOR_DATA_TYPE_H_
