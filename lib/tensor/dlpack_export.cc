#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lib/checked_math.h"
#include "lib/keep_loaded.h"
#include "lib/tensor/dlpack_abi.h"
#include "packalloc/tensor/dlpack.h"

namespace packalloc {
namespace {

// What an export holds: the struct for the consumer, and what it points to.
template <typename Struct>
struct Exported {
  Struct managed;
  Tensor tensor;
  std::vector<std::int64_t> shape_and_strides;
};

template <typename Struct>
void Delete(typename Struct::Public* managed) {
  delete static_cast<Exported<Struct>*>(dlpack_abi::From(managed)->manager_ctx);
}

template <typename Struct>
absl::StatusOr<std::unique_ptr<Exported<Struct>>> Export(const Tensor& tensor) {
  if (!tensor) return absl::FailedPreconditionError("an empty Tensor cannot be exported");
  KeepLibraryLoaded();  // deleters outlive whoever loaded it
  auto exported = std::make_unique<Exported<Struct>>();
  exported->tensor = tensor;
  const std::size_t ndim = tensor.shape().size();
  auto& numbers = exported->shape_and_strides;
  numbers.assign(tensor.shape().begin(), tensor.shape().end());
  numbers.resize(2 * ndim);
  std::uint64_t stride = 1;
  for (std::size_t i = ndim; i-- > 0;) {
    numbers[ndim + i] = static_cast<std::int64_t>(stride);
    // Overflows only where another dimension is 0, and then strides mean nothing.
    stride = CheckedMul<std::uint64_t>(stride, std::max<std::int64_t>(numbers[i], 1)).value_or(1);
  }
  Struct& managed = exported->managed;
  managed.manager_ctx = exported.get();
  managed.deleter = &Delete<Struct>;
  managed.dl_tensor = {.data = reinterpret_cast<void*>(tensor.data().value),
                       .device = tensor.device(),
                       .ndim = static_cast<std::int32_t>(ndim),
                       .dtype = tensor.dtype(),
                       .shape = numbers.data(),
                       .strides = numbers.data() + ndim,
                       .byte_offset = tensor.data().byte_offset};
  return exported;
}

}  // namespace

void DlpackDeleter::operator()(DLManagedTensor* managed) const noexcept {
  if (auto* deleter = dlpack_abi::From(managed)->deleter) deleter(managed);
}
void DlpackDeleter::operator()(DLManagedTensorVersioned* managed) const noexcept {
  if (auto* deleter = dlpack_abi::From(managed)->deleter) deleter(managed);
}

absl::StatusOr<DlpackVersionedPtr> ToDlpackVersioned(const Tensor& tensor, const ToDlpackOptions& options) {
  auto exported = Export<dlpack_abi::ManagedVersioned>(tensor);
  if (!exported.ok()) return exported.status();
  dlpack_abi::ManagedVersioned& managed = (*exported)->managed;
  managed.version = {dlpack_abi::kMajorVersion, dlpack_abi::kMinorVersion};
  managed.flags = (tensor.read_only() ? dlpack_abi::kReadOnly : 0) | (options.is_copied ? dlpack_abi::kIsCopied : 0) |
                  (tensor.sub_byte() == SubByte::kPadded ? dlpack_abi::kSubByteTypePadded : 0);
  return DlpackVersionedPtr(dlpack_abi::ToPublic(&exported->release()->managed));
}

absl::StatusOr<DlpackPtr> ToDlpack(const Tensor& tensor) {
  if (tensor.read_only()) {
    return absl::FailedPreconditionError(
        "the DLPack struct from before version 1.0 cannot say that memory is read-only; ask for the versioned one");
  }
  if (tensor.sub_byte() == SubByte::kPadded && tensor.dtype().bits < 8) {
    return absl::FailedPreconditionError(
        "the DLPack struct from before version 1.0 cannot say that sub-byte elements are padded; ask for the versioned "
        "one");
  }
  auto exported = Export<dlpack_abi::Managed>(tensor);
  if (!exported.ok()) return exported.status();
  return DlpackPtr(dlpack_abi::ToPublic(&exported->release()->managed));
}

}  // namespace packalloc
