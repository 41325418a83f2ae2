// The binary layout of DLPack's structs (version 1.x, and the one from before it), under names of our own, so that the
// library builds without a dlpack.h and never clashes with the one that its user has. A test compares it with a real
// dlpack.h where there is one.
#ifndef PACKALLOC_LIB_TENSOR_DLPACK_ABI_H_
#define PACKALLOC_LIB_TENSOR_DLPACK_ABI_H_

#include <cstdint>

#include "packalloc/tensor/data_type.h"
#include "packalloc/tensor/device.h"

struct DLManagedTensor;
struct DLManagedTensorVersioned;

namespace packalloc::dlpack_abi {

inline constexpr std::uint32_t kMajorVersion = 1;
inline constexpr std::uint32_t kMinorVersion = 3;

inline constexpr std::uint64_t kReadOnly = 1;
inline constexpr std::uint64_t kIsCopied = 2;
inline constexpr std::uint64_t kSubByteTypePadded = 4;

// may_alias: the objects are made and read by code that knows them under DLPack's names.
struct [[gnu::may_alias]] Tensor {
  void* data;
  DlDevice device;
  std::int32_t ndim;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; may be NULL on import
  std::uint64_t byte_offset;
};

struct [[gnu::may_alias]] Version {
  std::uint32_t major;
  std::uint32_t minor;
};

struct [[gnu::may_alias]] Managed {
  using Public = ::DLManagedTensor;
  Tensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(Public* self);
};

// Of another major version only `version` and `deleter` may be used.
struct [[gnu::may_alias]] ManagedVersioned {
  using Public = ::DLManagedTensorVersioned;
  Version version;
  void* manager_ctx;
  void (*deleter)(Public* self);
  std::uint64_t flags;
  Tensor dl_tensor;
};

inline Managed* From(::DLManagedTensor* managed) { return reinterpret_cast<Managed*>(managed); }
inline ManagedVersioned* From(::DLManagedTensorVersioned* managed) {
  return reinterpret_cast<ManagedVersioned*>(managed);
}
template <typename Struct>
typename Struct::Public* ToPublic(Struct* managed) {
  return reinterpret_cast<typename Struct::Public*>(managed);
}

}  // namespace packalloc::dlpack_abi

#endif  // PACKALLOC_LIB_TENSOR_DLPACK_ABI_H_
