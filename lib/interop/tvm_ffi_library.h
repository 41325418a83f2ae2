// The C functions of TVM-FFI, looked up at run time.
#ifndef PACKALLOC_LIB_INTEROP_TVM_FFI_LIBRARY_H_
#define PACKALLOC_LIB_INTEROP_TVM_FFI_LIBRARY_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "lib/interop/tvm_ffi_abi.h"

namespace packalloc::internal {

// Members are the functions' names without their prefix TVMFFI.
struct TvmFfiObjectFunctions {
  tvm_ffi_abi::CustomAllocator* (*GetCustomAllocator)();
  int (*SetCustomAllocator)(tvm_ffi_abi::CustomAllocator* allocator);
  void (*ErrorSetRaisedFromCStr)(const char* kind, const char* message);
  const tvm_ffi_abi::TypeInfo* (*GetTypeInfo)(std::int32_t type_index);
  int (*StringFromByteArray)(const tvm_ffi_abi::ByteArray* text, tvm_ffi_abi::Any* out);
  int (*ObjectDecRef)(void* object);
};

struct TvmFfiTensorFunctions {
  int (*EnvSetDLPackManagedTensorAllocator)(tvm_ffi_abi::TensorAllocator allocator, int write_to_global_context,
                                            tvm_ffi_abi::TensorAllocator* original);
  tvm_ffi_abi::TensorAllocator (*EnvGetDLPackManagedTensorAllocator)();
};

// From the library at `path`; where that is empty from what the process has loaded, else from libtvm_ffi.so, which
// stays loaded. UNAVAILABLE where there is none; UNIMPLEMENTED for another version than 0.1 or where a function is
// missing, naming it. Thread-safe.
absl::StatusOr<TvmFfiObjectFunctions> LoadTvmFfiObjects(const std::string& path);
absl::StatusOr<TvmFfiTensorFunctions> LoadTvmFfiTensors(const std::string& path);

}  // namespace packalloc::internal

#endif  // PACKALLOC_LIB_INTEROP_TVM_FFI_LIBRARY_H_
