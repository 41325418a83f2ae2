#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/checked_math.h"
#include "lib/tensor/address_only.h"
#include "lib/tensor/dlpack_abi.h"
#include "lib/tensor/read_only.h"
#include "lib/tensor/tensor_backing.h"
#include "packalloc/backends/cpu.h"
#include "packalloc/tensor/dlpack.h"

namespace packalloc {
namespace {

struct Imported {
  Tensor tensor;
  Buffer buffer;  // of the tensor's bytes
};

bool IsHostMemory(DlDevice device) {
  return device.type == DlDevice::kCpu || device.type == DlDevice::kCudaHost || device.type == DlDevice::kRocmHost;
}

bool AddressIsPointer(DlDevice device) {
  return device.type != DlDevice::kOpenCl && device.type != DlDevice::kVulkan && device.type != DlDevice::kMetal &&
         device.type != DlDevice::kWebGpu;
}

// Compact and row-major, whatever the strides of dimensions that have only one place.
absl::Status CheckStrides(absl::Span<const std::int64_t> shape, const std::int64_t* strides) {
  std::int64_t expected = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    if (shape[i] != 1 && strides[i] != expected) {
      return absl::InvalidArgumentError(
          absl::StrCat("a DLPack tensor of shape (", absl::StrJoin(shape, ", "), ") has strides (",
                       absl::StrJoin(absl::MakeConstSpan(strides, shape.size()), ", "),
                       "), but only compact row-major tensors are taken; make it contiguous first"));
    }
    expected *= shape[i];  // no more than the number of elements, which was checked
  }
  return absl::OkStatus();
}

// The tensor's shape and type without its memory.
absl::StatusOr<Tensor> DescribeImport(const dlpack_abi::Tensor& dl, SubByte sub_byte) {
  if (dl.ndim < 0 || (dl.ndim > 0 && dl.shape == nullptr)) {
    return absl::InvalidArgumentError(
        dl.ndim < 0 ? absl::StrCat("a DLPack tensor has ", dl.ndim, " dimensions")
                    : absl::StrCat("a DLPack tensor of ", dl.ndim, " dimensions has no shape (NULL)"));
  }
  const absl::Span<const std::int64_t> shape(dl.shape, static_cast<std::size_t>(dl.ndim));
  absl::StatusOr<Tensor> tensor = TensorAccess::Describe(shape, dl.dtype, dl.device, sub_byte);
  if (!tensor.ok() || tensor->nbytes() == 0) return tensor;
  if (dl.data == nullptr) return absl::InvalidArgumentError("a DLPack tensor with elements has no data (NULL)");
  const std::optional<std::uint64_t> end = CheckedAdd<std::uint64_t>(dl.byte_offset, tensor->nbytes());
  if (!end ||
      !CheckedAdd<std::uint64_t>(AddressIsPointer(dl.device) ? reinterpret_cast<std::uintptr_t>(dl.data) : 0, *end)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a DLPack tensor's byte_offset of ", dl.byte_offset, " passes the end of the address space"));
  }
  if (dl.strides != nullptr) {
    if (absl::Status compact = CheckStrides(shape, dl.strides); !compact.ok()) return compact;
  }
  return tensor;
}

// Whose copies and views are used.
absl::StatusOr<PackedAllocator> AllocatorFor(DlDevice device, const FromDlpackOptions& options) {
  if (!options.allocator) {
    static const PackedAllocator& cpu = *new PackedAllocator(*Pack(CpuAllocator()));
    return IsHostMemory(device) ? cpu : AddressOnly(AddressIsPointer(device));
  }
  const PackedAllocator& allocator = options.allocator;
  if (!allocator.traits().address_is_pointer) {
    return absl::UnimplementedError(absl::StrCat(allocator.name(),
                                                 " addresses memory by opaque handles, which cannot be wrapped; import "
                                                 "without an allocator to address, view and export the tensor"));
  }
  const absl::StatusOr<DlDevice> own = DlDeviceOf(allocator);
  const bool host_memory = IsHostMemory(device) && own.ok() && own->type == DlDevice::kCpu;
  const bool pinned = device.type == DlDevice::kCudaHost && own.ok() && own->type == DlDevice::kCuda;
  if (own.ok() && !(*own == device) && !host_memory && !pinned) {
    return absl::InvalidArgumentError(
        absl::StrCat("a DLPack tensor on ", ToString(device), " was to be wrapped by ", allocator.name()));
  }
  return allocator;
}

template <typename Struct>
absl::StatusOr<Imported> Import(Struct* managed, std::uint64_t flags, const FromDlpackOptions& options) {
  const dlpack_abi::Tensor& dl = managed->dl_tensor;
  const bool read_only = (flags & dlpack_abi::kReadOnly) != 0;
  absl::StatusOr<Tensor> tensor =
      DescribeImport(dl, (flags & dlpack_abi::kSubByteTypePadded) != 0 ? SubByte::kPadded : SubByte::kPacked);
  if (!tensor.ok()) return tensor.status();
  absl::StatusOr<PackedAllocator> allocator = AllocatorFor(dl.device, options);
  if (allocator.ok() && read_only) allocator = ReadOnly(*allocator);
  if (!allocator.ok()) return allocator.status();

  // Without elements there may be no address, but there is still a deleter to call at the end.
  static std::byte nowhere;
  void* data = tensor->nbytes() != 0 ? dl.data : &nowhere;
  std::size_t offset = tensor->nbytes() != 0 ? dl.byte_offset : 0;
  if (allocator->traits().address_is_pointer) data = static_cast<std::byte*>(data) + std::exchange(offset, 0);
  BufferSpec spec;
  spec.host = dl.device.type == DlDevice::kCudaHost;

  // The deleter is ours to call only once nothing can fail any more.
  const auto taken = std::make_shared<bool>(false);
  const auto release = [managed, taken] {
    if (*taken && managed->deleter != nullptr) managed->deleter(dlpack_abi::ToPublic(managed));
  };
  Buffer memory = Buffer::Wrap(*allocator, data, offset + tensor->nbytes(), release, spec);
  absl::StatusOr<std::unique_ptr<internal::TensorBacking>> backing = internal::NewBacking(memory);
  if (!backing.ok()) return backing.status();
  if (offset != 0) {
    absl::StatusOr<Buffer> part = memory.View(tensor->nbytes(), offset);
    if (!part.ok()) return part.status();
    memory = *std::move(part);
  }
  TensorAccess::Place(*tensor, internal::BackingShare(backing->release()), offset, tensor->nbytes());
  if (read_only) TensorAccess::SetReadOnly(*tensor);
  *taken = true;
  return Imported{*std::move(tensor), std::move(memory)};
}

absl::StatusOr<Imported> ImportAny(DLManagedTensor* managed, const FromDlpackOptions& options) {
  if (managed == nullptr) return absl::InvalidArgumentError("the DLManagedTensor is NULL");
  return Import(dlpack_abi::From(managed), 0, options);
}

absl::StatusOr<Imported> ImportAny(DLManagedTensorVersioned* managed, const FromDlpackOptions& options) {
  if (managed == nullptr) return absl::InvalidArgumentError("the DLManagedTensorVersioned is NULL");
  dlpack_abi::ManagedVersioned* const own = dlpack_abi::From(managed);
  if (own->version.major != dlpack_abi::kMajorVersion) {
    return absl::UnimplementedError(absl::StrCat("a DLPack tensor of version ", own->version.major, ".",
                                                 own->version.minor, "; only version 1 is known"));
  }
  return Import(own, own->flags, options);
}

template <typename Managed>
absl::StatusOr<Tensor> ImportTensor(Managed* managed, const FromDlpackOptions& options) {
  absl::StatusOr<Imported> imported = ImportAny(managed, options);
  if (!imported.ok()) return imported.status();
  return std::move(imported->tensor);
}

template <typename Managed>
absl::StatusOr<Buffer> ImportBuffer(Managed* managed, const FromDlpackOptions& options) {
  absl::StatusOr<Imported> imported = ImportAny(managed, options);
  if (!imported.ok()) return imported.status();
  return std::move(imported->buffer);
}

}  // namespace

absl::StatusOr<Tensor> FromDlpack(DLManagedTensorVersioned* managed, const FromDlpackOptions& options) {
  return ImportTensor(managed, options);
}
absl::StatusOr<Tensor> FromDlpack(DLManagedTensor* managed, const FromDlpackOptions& options) {
  return ImportTensor(managed, options);
}
absl::StatusOr<Buffer> BufferFromDlpack(DLManagedTensorVersioned* managed, const FromDlpackOptions& options) {
  return ImportBuffer(managed, options);
}
absl::StatusOr<Buffer> BufferFromDlpack(DLManagedTensor* managed, const FromDlpackOptions& options) {
  return ImportBuffer(managed, options);
}

}  // namespace packalloc
