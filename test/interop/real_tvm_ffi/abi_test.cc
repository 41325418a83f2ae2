// Our layout of what is used of TVM-FFI, against its own headers.
#include <doctest/doctest.h>
#include <tvm/ffi/c_api.h>
#include <tvm/ffi/extra/c_env_api.h>

#include <cstddef>
#include <type_traits>

#include "lib/interop/tvm_ffi_abi.h"
#include "lib/interop/tvm_ffi_library.h"

namespace packalloc {
namespace {

#define CHECK_MEMBER(ours, theirs, our_member, their_member)                                 \
  static_assert(offsetof(tvm_ffi_abi::ours, our_member) == offsetof(theirs, their_member) && \
                sizeof(tvm_ffi_abi::ours::our_member) == sizeof(std::declval<theirs>().their_member))

static_assert(sizeof(tvm_ffi_abi::Version) == sizeof(TVMFFIVersion));
CHECK_MEMBER(Version, TVMFFIVersion, major, major);
CHECK_MEMBER(Version, TVMFFIVersion, minor, minor);
CHECK_MEMBER(Version, TVMFFIVersion, patch, patch);

static_assert(sizeof(tvm_ffi_abi::ByteArray) == sizeof(TVMFFIByteArray));
CHECK_MEMBER(ByteArray, TVMFFIByteArray, data, data);
CHECK_MEMBER(ByteArray, TVMFFIByteArray, size, size);

static_assert(sizeof(tvm_ffi_abi::Any) == sizeof(TVMFFIAny));
CHECK_MEMBER(Any, TVMFFIAny, type_index, type_index);
CHECK_MEMBER(Any, TVMFFIAny, small_length, small_str_len);
CHECK_MEMBER(Any, TVMFFIAny, object, v_obj);
static_assert(tvm_ffi_abi::kFirstObjectType == kTVMFFIStaticObjectBegin);

static_assert(sizeof(tvm_ffi_abi::TypeInfo) <= sizeof(TVMFFITypeInfo));
CHECK_MEMBER(TypeInfo, TVMFFITypeInfo, type_index, type_index);
CHECK_MEMBER(TypeInfo, TVMFFITypeInfo, type_depth, type_depth);
CHECK_MEMBER(TypeInfo, TVMFFITypeInfo, type_key, type_key);

static_assert(sizeof(tvm_ffi_abi::ObjectAllocHeader) == sizeof(TVMFFIObjectAllocHeader));
CHECK_MEMBER(ObjectAllocHeader, TVMFFIObjectAllocHeader, delete_space, delete_space);
static_assert(std::is_same_v<decltype(tvm_ffi_abi::ObjectAllocHeader::delete_space),
                             decltype(TVMFFIObjectAllocHeader::delete_space)>);

static_assert(sizeof(tvm_ffi_abi::CustomAllocator) == sizeof(TVMFFICustomAllocator));
CHECK_MEMBER(CustomAllocator, TVMFFICustomAllocator, allocate, allocate);
CHECK_MEMBER(CustomAllocator, TVMFFICustomAllocator, context, context);
static_assert(
    std::is_same_v<decltype(tvm_ffi_abi::CustomAllocator::allocate), decltype(TVMFFICustomAllocator::allocate)>);

// A function of theirs, with their types in place of ours.
template <typename Ours, typename Theirs>
constexpr bool kSameShape = false;
template <typename R, typename... A, typename S, typename... B>
constexpr bool kSameShape<R (*)(A...), S (*)(B...)> =
    sizeof...(A) == sizeof...(B) && std::is_void_v<R> == std::is_void_v<S> && ((sizeof(A) == sizeof(B)) && ...) &&
    ((std::is_pointer_v<A> == std::is_pointer_v<B>)&&...);

using Objects = internal::TvmFfiObjectFunctions;
static_assert(kSameShape<decltype(Objects::get_custom_allocator), decltype(&TVMFFIGetCustomAllocator)>);
static_assert(kSameShape<decltype(Objects::set_custom_allocator), decltype(&TVMFFISetCustomAllocator)>);
static_assert(std::is_same_v<decltype(Objects::error_set_raised_from_c_str), decltype(&TVMFFIErrorSetRaisedFromCStr)>);
static_assert(kSameShape<decltype(Objects::get_type_info), decltype(&TVMFFIGetTypeInfo)>);
static_assert(kSameShape<decltype(Objects::string_from_byte_array), decltype(&TVMFFIStringFromByteArray)>);
static_assert(std::is_same_v<decltype(Objects::object_dec_ref), decltype(&TVMFFIObjectDecRef)>);

using Tensors = internal::TvmFfiTensorFunctions;
static_assert(kSameShape<tvm_ffi_abi::TensorAllocator, DLPackManagedTensorAllocator>);
static_assert(kSameShape<decltype(Tensors::env_set_dlpack_managed_tensor_allocator),
                         decltype(&TVMFFIEnvSetDLPackManagedTensorAllocator)>);
static_assert(kSameShape<decltype(Tensors::env_get_dlpack_managed_tensor_allocator),
                         decltype(&TVMFFIEnvGetDLPackManagedTensorAllocator)>);

TEST_CASE("the real library's version is one that is known") {
  TVMFFIVersion version{};
  TVMFFIGetVersion(&version);
  CHECK(version.major == 0);
  CHECK(version.minor == 1);
}

}  // namespace
}  // namespace packalloc
