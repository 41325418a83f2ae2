// Our layout of DLPack's structs against a real dlpack.h, and the public functions with the real types.
#include "lib/tensor/dlpack_abi.h"

#include <dlpack/dlpack.h>
#include <doctest/doctest.h>

#include <bit>
#include <cstddef>
#include <type_traits>

#include "packalloc/backends/cpu.h"
#include "packalloc/packed_allocator.h"
#include "packalloc/tensor/dlpack.h"
#include "packalloc/tensor/tensor_pool.h"

namespace packalloc {
namespace {

#define SAME_MEMBER(ours, our_member, theirs, their_member)                     \
  static_assert(offsetof(ours, our_member) == offsetof(theirs, their_member) && \
                sizeof(ours::our_member) == sizeof(theirs::their_member))

static_assert(sizeof(DataType) == sizeof(DLDataType) && alignof(DataType) == alignof(DLDataType));
SAME_MEMBER(DataType, code, DLDataType, code);
SAME_MEMBER(DataType, bits, DLDataType, bits);
SAME_MEMBER(DataType, lanes, DLDataType, lanes);
static_assert(sizeof(DlDevice) == sizeof(DLDevice));
SAME_MEMBER(DlDevice, type, DLDevice, device_type);
SAME_MEMBER(DlDevice, id, DLDevice, device_id);
static_assert(sizeof(dlpack_abi::Tensor) == sizeof(DLTensor));
SAME_MEMBER(dlpack_abi::Tensor, data, DLTensor, data);
SAME_MEMBER(dlpack_abi::Tensor, device, DLTensor, device);
SAME_MEMBER(dlpack_abi::Tensor, ndim, DLTensor, ndim);
SAME_MEMBER(dlpack_abi::Tensor, dtype, DLTensor, dtype);
SAME_MEMBER(dlpack_abi::Tensor, shape, DLTensor, shape);
SAME_MEMBER(dlpack_abi::Tensor, strides, DLTensor, strides);
SAME_MEMBER(dlpack_abi::Tensor, byte_offset, DLTensor, byte_offset);
static_assert(sizeof(dlpack_abi::Managed) == sizeof(DLManagedTensor));
SAME_MEMBER(dlpack_abi::Managed, dl_tensor, DLManagedTensor, dl_tensor);
SAME_MEMBER(dlpack_abi::Managed, manager_ctx, DLManagedTensor, manager_ctx);
SAME_MEMBER(dlpack_abi::Managed, deleter, DLManagedTensor, deleter);
static_assert(int{DataType::kBfloat} == kDLBfloat && int{DataType::kComplex} == kDLComplex);
static_assert(int{DlDevice::kCuda} == kDLCUDA && int{DlDevice::kCudaHost} == kDLCUDAHost);
static_assert(int{DlDevice::kOpenCl} == kDLOpenCL && int{DlDevice::kRocm} == kDLROCM);

#ifdef DLPACK_FLAG_BITMASK_READ_ONLY  // 1.0 or later
static_assert(sizeof(dlpack_abi::ManagedVersioned) == sizeof(DLManagedTensorVersioned));
SAME_MEMBER(dlpack_abi::ManagedVersioned, version, DLManagedTensorVersioned, version);
SAME_MEMBER(dlpack_abi::ManagedVersioned, manager_ctx, DLManagedTensorVersioned, manager_ctx);
SAME_MEMBER(dlpack_abi::ManagedVersioned, deleter, DLManagedTensorVersioned, deleter);
SAME_MEMBER(dlpack_abi::ManagedVersioned, flags, DLManagedTensorVersioned, flags);
SAME_MEMBER(dlpack_abi::ManagedVersioned, dl_tensor, DLManagedTensorVersioned, dl_tensor);
static_assert(dlpack_abi::kReadOnly == DLPACK_FLAG_BITMASK_READ_ONLY);
static_assert(dlpack_abi::kIsCopied == DLPACK_FLAG_BITMASK_IS_COPIED);
static_assert(dlpack_abi::kMajorVersion == DLPACK_MAJOR_VERSION);
#endif
#ifdef DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED  // 1.1 or later
static_assert(dlpack_abi::kSubByteTypePadded == DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED);
static_assert(int{DataType::kBool} == kDLBool);
static_assert(int{DataType::kFloat8_e3m4} == kDLFloat8_e3m4 && int{DataType::kFloat8_e5m2} == kDLFloat8_e5m2);
static_assert(int{DataType::kFloat8_e8m0fnu} == kDLFloat8_e8m0fnu && int{DataType::kFloat4_e2m1fn} == kDLFloat4_e2m1fn);
#endif

TEST_CASE("a program with its own dlpack.h exports, reads and imports") {
  const TensorPool pool = *TensorPool::Make(*Pack(CpuAllocator()));
  const DLDataType dtype = std::bit_cast<DLDataType>(kFloat32);
  CHECK(dtype.bits == 32);
  const DLDevice device{kDLCPU, 0};
  DLManagedTensor* managed = ToDlpack(*pool.Empty({2, 3}, DataType(dtype), DlDevice(device)))->release();
  CHECK(managed->dl_tensor.shape[1] == 3);
  CHECK(managed->dl_tensor.device.device_type == kDLCPU);
  static_cast<float*>(managed->dl_tensor.data)[5] = 7;
  CHECK(static_cast<float*>(managed->dl_tensor.data)[5] == 7);
  const absl::StatusOr<Tensor> back = FromDlpack(managed);
  CHECK(back.ok());
#ifdef DLPACK_FLAG_BITMASK_READ_ONLY
  DLManagedTensorVersioned* versioned = ToDlpackVersioned(*back)->release();
  CHECK(versioned->version.major == DLPACK_MAJOR_VERSION);
  CHECK(versioned->dl_tensor.strides[0] == 3);
  versioned->deleter(versioned);
#endif
}

}  // namespace
}  // namespace packalloc
