// Allocators over the C ABI, both ways: FromC makes a record of a C struct of functions (packalloc/c/record.h), ToC
// such a struct of any packed allocator. With them a backend may be written in C, in another language, or in a shared
// library built by another compiler.
//
//   packalloc_record heap = MakeHeapInC();
//   absl::StatusOr<packalloc::Allocator<packalloc_raw_buffer>> record = packalloc::FromC(heap);
//   absl::StatusOr<packalloc::PackedAllocator> device = packalloc::Pack(*record);
//
//   packalloc_record out = PACKALLOC_RECORD_INIT;                  // for a library that speaks C only
//   absl::Status exported = packalloc::ToC(*packalloc::Open("CUDA+lru"), &out);
//   their_engine_run(&out);
//   out.release(out.self);
#ifndef PACKALLOC_C_RECORD_CPP_H_
#define PACKALLOC_C_RECORD_CPP_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "packalloc/allocator.h"
#include "packalloc/c/record.h"
#include "packalloc/packed_allocator.h"

namespace packalloc {

// The backend's own objects by name ("cuda.stream"), of an allocator that came over the C ABI: Find<NativeHandles>.
// Thread-safe.
class NativeHandles {
 public:
  virtual ~NativeHandles() = default;
  // Valid as long as the allocator. NOT_FOUND for a key that it does not have.
  virtual absl::StatusOr<void*> Get(const std::string& key) const = 0;
};

// A record over `c`, which is copied as far as its struct_size says; empty slots stay empty. On success `release` is
// called once, when the last copy of the record and the last buffer from it are gone. Sizes of 0 bytes and invalid
// specs never reach the C functions. Their answers are checked: a status that is none, a host_ptr that is NULL, more
// bytes free than there are, are INTERNAL. INVALID_ARGUMENT, and nothing called, for a struct_size that is too small or
// absurd, a required slot that is NULL, or a min_alignment that is not a power of two. Thread-safe as the functions
// are. As UMF's struct of operations.
absl::StatusOr<Allocator<packalloc_raw_buffer>> FromC(const packalloc_record& c);

// Fills in `out`, up to the out->struct_size that the caller has set; slots that `packed` cannot serve are NULL. The
// struct shares the allocator's state until the caller calls out->release(out->self); buffers that are alive then stay
// good until freed through another struct of the same allocator, or never. No exception leaves its functions, and a
// handle that was freed or made up, or is of another allocator, is INVALID_ARGUMENT. INVALID_ARGUMENT for a null `out`
// or a bad struct_size, FAILED_PRECONDITION for an empty `packed`. Thread-safe.
absl::Status ToC(const PackedAllocator& packed, packalloc_record* out);

}  // namespace packalloc

#endif  // PACKALLOC_C_RECORD_CPP_H_
