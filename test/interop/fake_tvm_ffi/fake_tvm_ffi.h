// A libtvm_ffi.so of the tests' own: the functions of TVM-FFI's C ABI that this library uses, over objects that hold
// nothing, and what a test sets and looks at. It is as strict as the real one where that ends the process.
#ifndef PACKALLOC_TEST_INTEROP_FAKE_TVM_FFI_H_
#define PACKALLOC_TEST_INTEROP_FAKE_TVM_FFI_H_

#include <cstddef>
#include <cstdint>

#include "lib/interop/tvm_ffi_abi.h"

extern "C" {

// ---- TVM-FFI's ----
packalloc::tvm_ffi_abi::CustomAllocator* TVMFFIGetCustomAllocator();
int TVMFFISetCustomAllocator(packalloc::tvm_ffi_abi::CustomAllocator* allocator);
int TVMFFIObjectDecRef(void* object);
int TVMFFIEnvSetDLPackManagedTensorAllocator(packalloc::tvm_ffi_abi::TensorAllocator allocator,
                                             int write_to_global_context,
                                             packalloc::tvm_ffi_abi::TensorAllocator* original);
packalloc::tvm_ffi_abi::TensorAllocator TVMFFIEnvGetDLPackManagedTensorAllocator();
// The real one wraps what the allocator gives in an object; here `out` is that itself. -1 with an error raised.
int TVMFFIEnvTensorAlloc(void* prototype, DLManagedTensorVersioned** out);

// ---- the tests' ----
// Whether the library's own objects ask the allocator, as those of 0.1.13 do. They do at first.
void FakeTvmFfiSetLive(bool live);
// An object with one reference whose maker asks the allocator; null where that gives none. Its bytes are scribbled on
// when it is dropped, as a destructor may.
void* FakeTvmFfiMake(std::size_t size, std::size_t alignment, std::int32_t type_index);
// Makes TVMFFISetCustomAllocator and TVMFFIEnvSetDLPackManagedTensorAllocator fail.
void FakeTvmFfiFailToSet(bool fail);
// Of the error that the calling thread raised last; "" for none. Dropped by clearing.
const char* FakeTvmFfiRaisedKind();
const char* FakeTvmFfiRaisedMessage();
void FakeTvmFfiClearRaised();
}

#endif  // PACKALLOC_TEST_INTEROP_FAKE_TVM_FFI_H_
