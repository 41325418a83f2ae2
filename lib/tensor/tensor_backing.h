// What a tensor, its copies and its views share: the memory, and the pool that it goes back to.
#ifndef PACKALLOC_LIB_TENSOR_TENSOR_BACKING_H_
#define PACKALLOC_LIB_TENSOR_TENSOR_BACKING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "lib/layers/buffer_table.h"
#include "packalloc/buffer.h"
#include "packalloc/packed_allocator.h"
#include "packalloc/tensor/tensor.h"

namespace packalloc {

class LruCache;

namespace internal {

// Takes a backing back from its last user.
class BackingHome {
 public:
  virtual ~BackingHome() = default;
  virtual void TakeBack(TensorBacking* backing) noexcept = 0;
};

struct TensorBacking {
  std::atomic<std::size_t> users{1};
  Buffer buffer;
  DeviceAddress address;
  bool address_is_pointer = true;
  // Of a pool's, cached or in use: the pool, kept alive, its cache, and what the cache finds it by. Else null.
  std::shared_ptr<BackingHome> home;
  LruCache* cache = nullptr;
  BufferKey key;
};

// Over the whole of `buffer`, which is allocated if it was not.
absl::StatusOr<std::unique_ptr<TensorBacking>> NewBacking(Buffer buffer);

}  // namespace internal

// What the library's own code builds tensors with.
struct TensorAccess {
  // A tensor without memory; data, bytes and capacity are `Place`'s to set. Errors as TensorBytes.
  static absl::StatusOr<Tensor> Describe(absl::Span<const std::int64_t> shape, DataType dtype, DlDevice device,
                                         SubByte sub_byte = SubByte::kPacked) {
    return Tensor::Describe(shape, dtype, device, sub_byte);
  }
  // Puts a described tensor at `offset` of a backing that has at least nbytes() there.
  static void Place(Tensor& tensor, internal::BackingShare backing, std::size_t offset, std::size_t capacity) {
    tensor.fields_.capacity = capacity;
    tensor.fields_.offset = offset;
    if (tensor.fields_.nbytes != 0) {
      tensor.fields_.data = backing->address;
      (backing->address_is_pointer ? tensor.fields_.data.value : tensor.fields_.data.byte_offset) += offset;
    }
    tensor.backing_ = std::move(backing);
  }
  static void SetReadOnly(Tensor& tensor) { tensor.fields_.read_only = true; }
};

}  // namespace packalloc

#endif  // PACKALLOC_LIB_TENSOR_TENSOR_BACKING_H_
