// A record for memory of which nothing but the address is known.
#ifndef PACKALLOC_LIB_TENSOR_ADDRESS_ONLY_H_
#define PACKALLOC_LIB_TENSOR_ADDRESS_ONLY_H_

#include "packalloc/packed_allocator.h"

namespace packalloc {

// Wraps memory (BufferSpec::external_ptr, a pointer or an opaque handle), addresses it and makes views; allocating and
// copying are UNIMPLEMENTED. One allocator for pointers and one for handles, for the life of the process.
const PackedAllocator& AddressOnly(bool address_is_pointer);

}  // namespace packalloc

#endif  // PACKALLOC_LIB_TENSOR_ADDRESS_ONLY_H_
