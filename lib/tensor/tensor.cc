#include "packalloc/tensor/tensor.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/checked_math.h"
#include "lib/checks.h"
#include "lib/tensor/read_only.h"
#include "lib/tensor/tensor_backing.h"
#include "lib/tensor/tensor_bytes.h"

namespace packalloc {

namespace internal {

void AddUser(TensorBacking* backing) noexcept { backing->users.fetch_add(1, std::memory_order_relaxed); }

void DropUser(TensorBacking* backing) noexcept {
  // The only user can have no other come: that needs a share to copy.
  if (backing->users.load(std::memory_order_acquire) != 1 &&
      backing->users.fetch_sub(1, std::memory_order_acq_rel) != 1) {
    return;
  }
  if (backing->home == nullptr) {
    delete backing;
    return;
  }
  backing->home->TakeBack(backing);
}

absl::StatusOr<std::unique_ptr<TensorBacking>> NewBacking(Buffer buffer) {
  const absl::StatusOr<DeviceAddress> address = buffer.addr();
  if (!address.ok()) return address.status();
  auto backing = std::make_unique<TensorBacking>();
  backing->address = *address;
  backing->address_is_pointer = buffer.allocator().traits().address_is_pointer;
  backing->buffer = std::move(buffer);
  return backing;
}

}  // namespace internal

namespace {

absl::Status EmptyTensor() {
  return absl::FailedPreconditionError("the Tensor is empty (default-constructed or moved from)");
}

absl::Status NoElements() { return absl::FailedPreconditionError("the Tensor has no elements, and so no memory"); }

absl::Status BeyondCapacity(const Tensor& tensor, std::size_t byte_offset, std::size_t capacity) {
  return absl::OutOfRangeError(absl::StrCat("a tensor of shape (", absl::StrJoin(tensor.shape(), ", "), ") of ",
                                            ToString(tensor.dtype()), " is ", tensor.nbytes(), " bytes; at offset ",
                                            byte_offset, " it does not fit into ", capacity, " bytes"));
}

}  // namespace

// Each member by itself: an aggregate is zeroed whole first, and a loop over so few dimensions becomes a call of
// memcpy; either takes longer than all the rest.
Tensor::Fields::Fields(std::size_t bytes, absl::Span<const std::int64_t> dimensions, DlDevice on, DataType type,
                       SubByte packing)
    : nbytes(bytes), ndim(dimensions.size()), device(on), dtype(type), sub_byte(packing) {
  const auto at = [dimensions](std::size_t i) { return i < dimensions.size() ? dimensions[i] : 0; };
  shape = {at(0), at(1), at(2), at(3)};
}

Tensor::Tensor(Key, absl::Span<const std::int64_t> shape, DataType dtype, DlDevice device, SubByte sub_byte,
               std::size_t nbytes)
    : fields_(nbytes, shape, device, dtype, sub_byte) {
  if (shape.size() > fields_.shape.size()) {
    const std::shared_ptr<std::int64_t[]> copy(new std::int64_t[shape.size()]);
    std::copy(shape.begin(), shape.end(), copy.get());
    long_shape_ = copy;
  }
}

absl::StatusOr<Tensor> Tensor::Describe(absl::Span<const std::int64_t> shape, DataType dtype, DlDevice device,
                                        SubByte sub_byte) {
  const std::size_t nbytes = TryTensorBytes(shape, dtype, sub_byte);
  if (nbytes == kNoTensorBytes) [[unlikely]]
    return TensorBytes(shape, dtype, sub_byte).status();
  return absl::StatusOr<Tensor>(absl::in_place, Key(), shape, dtype, device, sub_byte, nbytes);
}

absl::StatusOr<Tensor> Tensor::Over(const Buffer& buffer, absl::Span<const std::int64_t> shape, DataType dtype,
                                    const TensorOverOptions& options) {
  absl::StatusOr<DlDevice> device = options.device ? *options.device : DlDeviceOf(buffer.allocator(), buffer.spec());
  if (!device.ok()) return device.status();
  absl::StatusOr<Tensor> tensor = Describe(shape, dtype, *device, SubByte::kPacked);
  if (!tensor.ok()) return tensor;
  if (!InRange(options.byte_offset, tensor->fields_.nbytes, buffer.nbytes())) {
    return BeyondCapacity(*tensor, options.byte_offset, buffer.nbytes());
  }
  // A view of its own, for as long as which the base cannot be deallocated.
  absl::StatusOr<Buffer> memory = buffer.supports_offset() ? buffer.View(buffer.nbytes(), 0) : buffer;
  if (!memory.ok()) return memory.status();
  absl::StatusOr<std::unique_ptr<internal::TensorBacking>> backing = internal::NewBacking(*std::move(memory));
  if (!backing.ok()) return backing.status();
  TensorAccess::Place(*tensor, internal::BackingShare(backing->release()), options.byte_offset,
                      buffer.nbytes() - options.byte_offset);
  tensor->fields_.read_only = options.read_only || IsReadOnly(buffer.allocator());
  return tensor;
}

bool Tensor::data_is_pointer() const { return backing_.get() == nullptr || backing_->address_is_pointer; }

const PackedAllocator& Tensor::allocator() const {
  static const PackedAllocator& none = *new PackedAllocator;
  return backing_.get() != nullptr ? backing_->buffer.allocator() : none;
}

absl::StatusOr<Tensor> Tensor::View(absl::Span<const std::int64_t> shape, DataType dtype,
                                    std::size_t byte_offset) const {
  if (!*this) return EmptyTensor();
  absl::StatusOr<Tensor> view = Describe(shape, dtype, fields_.device, fields_.sub_byte);
  if (!view.ok()) return view;
  if (!InRange(byte_offset, view->fields_.nbytes, fields_.capacity))
    return BeyondCapacity(*view, byte_offset, fields_.capacity);
  view->fields_.read_only = fields_.read_only;
  TensorAccess::Place(*view, backing_, fields_.offset + byte_offset, view->fields_.nbytes);
  return view;
}

// Of bytes [fields_.offset, fields_.offset + fields_.nbytes), or of more where they begin at the start.
absl::StatusOr<AnyBuf> Tensor::Handle() const {
  if (!*this) return EmptyTensor();
  absl::StatusOr<AnyBuf> whole = backing_->buffer.handle();
  if (!whole.ok() || fields_.offset == 0) return whole;
  return allocator().offset(*whole, fields_.nbytes, fields_.offset);
}

absl::Status Tensor::CopyIn(absl::Span<const std::byte> src) const {
  if (!*this) return EmptyTensor();
  if (fields_.read_only) return absl::FailedPreconditionError("CopyIn to a read-only Tensor");
  if (absl::Status fits = CheckCopy("CopyIn", src.size(), fields_.nbytes); !fits.ok() || src.empty()) return fits;
  const absl::StatusOr<AnyBuf> handle = Handle();
  return handle.ok() ? allocator().copyin(*handle, src) : handle.status();
}

absl::Status Tensor::CopyOut(absl::Span<std::byte> dest) const {
  if (!*this) return EmptyTensor();
  if (absl::Status fits = CheckCopy("CopyOut", dest.size(), fields_.nbytes); !fits.ok() || dest.empty()) return fits;
  const absl::StatusOr<AnyBuf> handle = Handle();
  return handle.ok() ? allocator().copyout(dest, *handle) : handle.status();
}

absl::StatusOr<std::byte*> Tensor::host_ptr() const {
  if (!*this) return EmptyTensor();
  if (fields_.nbytes == 0) return NoElements();
  if (read_only()) return absl::FailedPreconditionError("host_ptr of a read-only Tensor: CopyOut reads it");
  if (!allocator().supports_host_ptr()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the CPU may not read and write memory of ", allocator().name(), " where it lies"));
  }
  absl::StatusOr<std::byte*> start = backing_->buffer.host_ptr();
  if (start.ok()) *start += fields_.offset;
  return start;
}

absl::StatusOr<BufferRef> Tensor::ref() const {
  if (!*this) return EmptyTensor();
  if (fields_.nbytes == 0) return NoElements();
  if (fields_.read_only && !IsReadOnly(allocator())) {
    return absl::FailedPreconditionError("ref() of a read-only Tensor over memory that could be written through it");
  }
  absl::StatusOr<AnyBuf> handle = Handle();
  if (handle.ok() && handle->nbytes() != fields_.nbytes) handle = allocator().offset(*handle, fields_.nbytes, 0);
  if (!handle.ok()) return handle.status();
  return BufferRef{allocator(), *std::move(handle)};
}

}  // namespace packalloc
