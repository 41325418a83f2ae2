// Tensor: a shape and a data type over device memory that it keeps alive. Comes from a TensorPool, from a Buffer, or by
// DLPack from another library (dlpack.h).
//
//   absl::StatusOr<packalloc::Tensor> t = pool.Empty({64, 1024}, packalloc::kFloat32);      // tensor_pool.h
//   absl::Status written = t->CopyIn(host_bytes);
//   absl::StatusOr<packalloc::Tensor> row = t->View({1024}, packalloc::kFloat32, 4096);     // the second row
//   void* argument = reinterpret_cast<void*>(row->data().value);                            // for a kernel
//
//   packalloc::Buffer weights(gpu, 4096);
//   absl::StatusOr<packalloc::Tensor> w = packalloc::Tensor::Over(weights, {1024}, packalloc::kFloat32);
#ifndef PACKALLOC_TENSOR_TENSOR_H_
#define PACKALLOC_TENSOR_TENSOR_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "packalloc/allocator.h"
#include "packalloc/buffer.h"
#include "packalloc/copy.h"
#include "packalloc/tensor/data_type.h"
#include "packalloc/tensor/device.h"

namespace packalloc {

namespace internal {

struct TensorBacking;  // the memory, shared by a tensor, its copies and its views
void AddUser(TensorBacking* backing) noexcept;
void DropUser(TensorBacking* backing) noexcept;

// A share in a backing.
class BackingShare {
 public:
  BackingShare() = default;
  explicit BackingShare(TensorBacking* counted) : backing_(counted) {}
  BackingShare(const BackingShare& other) : backing_(other.backing_) {
    if (backing_ != nullptr) AddUser(backing_);
  }
  BackingShare(BackingShare&& other) noexcept : backing_(std::exchange(other.backing_, nullptr)) {}
  BackingShare& operator=(BackingShare other) noexcept {
    std::swap(backing_, other.backing_);
    return *this;
  }
  ~BackingShare() {
    if (backing_ != nullptr) DropUser(backing_);
  }
  TensorBacking* get() const { return backing_; }
  TensorBacking* operator->() const { return backing_; }

 private:
  TensorBacking* backing_ = nullptr;
};

}  // namespace internal

struct TensorOverOptions {
  std::size_t byte_offset = 0;       // of the tensor's first element in the buffer
  std::optional<DlDevice> device{};  // unset: DlDeviceOf(buffer.allocator(), buffer.spec())
  bool read_only = false;            // CopyIn is refused, and consumers by DLPack are told
};

// Compact (row-major, no gaps) and owning: refers to shared memory as a shared_ptr does. Copies and views are of the
// same memory, which is given back when the last of them and the last export is gone, in any order and on any thread,
// without throwing; `const` does not protect its bytes. Default-constructed or moved-from it is empty: no shape and no
// bytes, and what returns a status says FAILED_PRECONDITION. Thread-safe as a shared_ptr is; copies to and from one
// memory are the caller's to order.
class Tensor {
  class Key {
    friend class Tensor;
    Key() {}  // NOLINT(modernize-use-equals-default): an aggregate would be anybody's
  };

 public:
  Tensor() = default;
  // Of the library's own: no memory yet.
  Tensor(Key, absl::Span<const std::int64_t> shape, DataType dtype, DlDevice device, SubByte sub_byte,
         std::size_t nbytes);
  Tensor(const Tensor&) = default;
  Tensor(Tensor&& other) noexcept
      : backing_(std::move(other.backing_)),
        fields_(std::exchange(other.fields_, {})),
        long_shape_(std::move(other.long_shape_)) {}
  Tensor& operator=(const Tensor&) = default;
  Tensor& operator=(Tensor&& other) noexcept {
    Tensor moved(std::move(other));
    std::swap(backing_, moved.backing_);
    fields_ = moved.fields_;
    long_shape_ = std::move(moved.long_shape_);
    return *this;
  }
  ~Tensor() = default;

  // A tensor over `buffer`, which is allocated if it was not and stays so: its base refuses Deallocate meanwhile (where
  // the device has views). INVALID_ARGUMENT for a bad shape or type, or a device that is not known; OUT_OF_RANGE where
  // the buffer is too small; else Buffer's errors.
  static absl::StatusOr<Tensor> Over(const Buffer& buffer, absl::Span<const std::int64_t> shape, DataType dtype,
                                     const TensorOverOptions& options = {});

  explicit operator bool() const { return fields_.dtype.bits != 0; }
  absl::Span<const std::int64_t> shape() const {
    return {long_shape_ ? long_shape_.get() : fields_.shape.data(), fields_.ndim};
  }
  DataType dtype() const { return fields_.dtype; }
  DlDevice device() const { return fields_.device; }
  // Elements of fewer than 8 bits: how they lie. kPadded only in what came so by DLPack, and in its views.
  SubByte sub_byte() const { return fields_.sub_byte; }
  std::size_t nbytes() const { return fields_.nbytes; }
  // Bytes that a view may reach from data() on. More than nbytes() in a new tensor of a pool, which rounds up to pages.
  std::size_t capacity() const { return fields_.capacity; }
  bool read_only() const { return fields_.read_only; }
  // Of the first element. {0, 0} without elements.
  DeviceAddress data() const { return fields_.data; }
  // False where data().value is an opaque handle (a cl_mem), of which byte_offset is to be kept apart.
  bool data_is_pointer() const;
  // Of the memory; empty without elements. That of an imported tensor may know its address only (dlpack.h).
  const PackedAllocator& allocator() const;

  // A tensor of other shape and type over bytes from `byte_offset` of this one on (of a view: relative to it, whatever
  // its base has beyond). INVALID_ARGUMENT as TensorBytes, OUT_OF_RANGE beyond capacity(), naming both.
  absl::StatusOr<Tensor> View(absl::Span<const std::int64_t> shape, DataType dtype, std::size_t byte_offset = 0) const;

  // Host to device: src.size() bytes to the start. OUT_OF_RANGE, and nothing written, for more than nbytes();
  // FAILED_PRECONDITION for a read-only tensor; else what the allocator answers.
  absl::Status CopyIn(absl::Span<const std::byte> src) const;
  // Device to host: dest.size() bytes from the start. OUT_OF_RANGE, and nothing written, for more than nbytes().
  absl::Status CopyOut(absl::Span<std::byte> dest) const;
  // Where the CPU may read and write the elements (after synchronize). FAILED_PRECONDITION where it may not, as in a
  // read-only tensor and in one without elements.
  absl::StatusOr<std::byte*> host_ptr() const;
  // Allocator and handle of exactly nbytes(), for Copy and CopyAll; valid as long as this tensor. UNIMPLEMENTED where
  // they would be a view and the device has none; FAILED_PRECONDITION for a tensor that was made read_only over a
  // writable buffer (CopyOut reads it) and for one without elements.
  absl::StatusOr<BufferRef> ref() const;

 private:
  friend class TensorPool;
  friend struct TensorAccess;

  // A tensor that has no memory yet. Errors as TensorBytes.
  static absl::StatusOr<Tensor> Describe(absl::Span<const std::int64_t> shape, DataType dtype, DlDevice device,
                                         SubByte sub_byte);
  absl::StatusOr<AnyBuf> Handle() const;

  struct Fields {
    Fields() = default;
    Fields(std::size_t bytes, absl::Span<const std::int64_t> dimensions, DlDevice on, DataType type, SubByte packing);

    DeviceAddress data{};
    std::size_t offset = 0;  // of `data` from the backing's start, in bytes
    std::size_t nbytes = 0;
    std::size_t capacity = 0;
    std::array<std::int64_t, 4> shape{};  // the first dimensions
    std::size_t ndim = 0;
    DlDevice device{};
    DataType dtype{};
    SubByte sub_byte = SubByte::kPacked;
    bool read_only = false;
  };

  internal::BackingShare backing_;  // null without elements, unless something is to be kept alive
  Fields fields_;
  std::shared_ptr<const std::int64_t[]> long_shape_;  // all, where they are more than that; else null
};

}  // namespace packalloc

#endif  // PACKALLOC_TENSOR_TENSOR_H_
