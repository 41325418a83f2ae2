// The backends' own objects by name.
#ifndef PACKALLOC_LIB_C_NATIVE_H_
#define PACKALLOC_LIB_C_NATIVE_H_

#include <string>

#include "absl/status/statusor.h"
#include "packalloc/packed_allocator.h"

namespace packalloc {

// "cuda.stream", "opencl.queue", ..., and what an allocator from over the C ABI answers to. NOT_FOUND for another key,
// naming those there are.
absl::StatusOr<void*> NativeHandle(const PackedAllocator& allocator, const std::string& key);

}  // namespace packalloc

#endif  // PACKALLOC_LIB_C_NATIVE_H_
