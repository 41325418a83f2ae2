// The binary layout of what this library uses of TVM-FFI 0.1 (tvm/ffi/c_api.h, extra/c_env_api.h), under names of our
// own, so that it builds without those headers. A test compares it with the real ones where they are there.
#ifndef PACKALLOC_LIB_INTEROP_TVM_FFI_ABI_H_
#define PACKALLOC_LIB_INTEROP_TVM_FFI_ABI_H_

#include <cstddef>
#include <cstdint>

struct DLManagedTensorVersioned;

namespace packalloc::tvm_ffi_abi {

struct [[gnu::may_alias]] Version {
  std::uint32_t major;
  std::uint32_t minor;
  std::uint32_t patch;
};

struct [[gnu::may_alias]] ByteArray {
  const char* data;
  std::size_t size;
};

inline constexpr std::int32_t kFirstObjectType = 64;  // type indices from here on are objects on the heap

struct [[gnu::may_alias]] Any {
  std::int32_t type_index;
  std::uint32_t small_length;
  void* object;  // where type_index is an object's
};

// The beginning of TVMFFITypeInfo.
struct [[gnu::may_alias]] TypeInfo {
  std::int32_t type_index;
  std::int32_t type_depth;
  ByteArray type_key;
};

// Immediately before every object's body.
struct [[gnu::may_alias]] ObjectAllocHeader {
  void (*delete_space)(void* body);
};

struct [[gnu::may_alias]] CustomAllocator {
  void* (*allocate)(std::size_t size, std::size_t alignment, std::int32_t type_index, void* context);
  void* context;
};

// DLPackManagedTensorAllocator. `prototype` is a DLTensor (lib/tensor/dlpack_abi.h).
using SetError = void (*)(void* error_context, const char* kind, const char* message);
using TensorAllocator = int (*)(void* prototype, ::DLManagedTensorVersioned** out, void* error_context,
                                SetError set_error);

}  // namespace packalloc::tvm_ffi_abi

#endif  // PACKALLOC_LIB_INTEROP_TVM_FFI_ABI_H_
