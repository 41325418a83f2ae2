// Memory that must not be written: a layer that leaves reading only.
#ifndef PACKALLOC_LIB_TENSOR_READ_ONLY_H_
#define PACKALLOC_LIB_TENSOR_READ_ONLY_H_

#include "absl/status/statusor.h"
#include "packalloc/packed_allocator.h"

namespace packalloc {

// `packed` whose buffers can be read by copyout and addressed by addr. Writing is FAILED_PRECONDITION; what would let
// others write (transfer, host_ptr) is not there. An allocator with an id and a transfer domain of its own.
absl::StatusOr<PackedAllocator> ReadOnly(const PackedAllocator& packed);

bool IsReadOnly(const PackedAllocator& packed);

}  // namespace packalloc

#endif  // PACKALLOC_LIB_TENSOR_READ_ONLY_H_
