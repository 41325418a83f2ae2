// The C functions of TVM-FFI, looked up at run time.
#ifndef PACKALLOC_LIB_INTEROP_TVM_FFI_LIBRARY_H_
#define PACKALLOC_LIB_INTEROP_TVM_FFI_LIBRARY_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "lib/interop/tvm_ffi_abi.h"

namespace packalloc::internal {

// The functions TVMFFI...; a member's name is the function's.
struct TvmFfiObjectFunctions {
  tvm_ffi_abi::CustomAllocator* (*get_custom_allocator)();
  int (*set_custom_allocator)(tvm_ffi_abi::CustomAllocator* allocator);
  void (*error_set_raised_from_c_str)(const char* kind, const char* message);
  const tvm_ffi_abi::TypeInfo* (*get_type_info)(std::int32_t type_index);
  int (*string_from_byte_array)(const tvm_ffi_abi::ByteArray* text, tvm_ffi_abi::Any* out);
  int (*object_dec_ref)(void* object);
};

struct TvmFfiTensorFunctions {
  int (*env_set_dlpack_managed_tensor_allocator)(tvm_ffi_abi::TensorAllocator allocator, int write_to_global_context,
                                                 tvm_ffi_abi::TensorAllocator* original);
  tvm_ffi_abi::TensorAllocator (*env_get_dlpack_managed_tensor_allocator)();
};

// From the library at `path`; where that is empty from what the process has loaded, else from libtvm_ffi.so, which
// stays loaded. UNAVAILABLE where there is none; UNIMPLEMENTED for another version than 0.1 or where a function is
// missing, naming it. Thread-safe.
absl::StatusOr<TvmFfiObjectFunctions> LoadTvmFfiObjects(const std::string& path);
absl::StatusOr<TvmFfiTensorFunctions> LoadTvmFfiTensors(const std::string& path);

}  // namespace packalloc::internal

#endif  // PACKALLOC_LIB_INTEROP_TVM_FFI_LIBRARY_H_
