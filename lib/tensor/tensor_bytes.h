// TensorBytes without its error, for where most calls succeed and the time counts.
#ifndef PACKALLOC_LIB_TENSOR_TENSOR_BYTES_H_
#define PACKALLOC_LIB_TENSOR_TENSOR_BYTES_H_

#include <cstddef>
#include <limits>

#include "packalloc/tensor/data_type.h"

namespace packalloc {

inline constexpr std::size_t kNoTensorBytes = std::numeric_limits<std::size_t>::max();

// kNoTensorBytes where TensorBytes has an error.
std::size_t TryTensorBytes(absl::Span<const std::int64_t> shape, DataType dtype, SubByte sub_byte);

}  // namespace packalloc

#endif  // PACKALLOC_LIB_TENSOR_TENSOR_BYTES_H_
