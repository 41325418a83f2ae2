// TensorPool: a cache of owning device tensors. Sizes are rounded up to pages, so that shapes which keep changing find
// memory again; what a tensor gives back the next one gets, without asking the device.
//
//   absl::StatusOr<packalloc::TensorPool> pool = packalloc::TensorPool::Make(*packalloc::Open("CUDA"));
//   absl::StatusOr<packalloc::Tensor> a = pool->Empty({3, 1024}, packalloc::kFloat32);        // 256-byte aligned
//   absl::StatusOr<packalloc::Tensor> row = pool->CreateView(*a, {1024}, packalloc::kFloat32, 4096);
//   a = packalloc::Tensor();              // the row still holds the memory
//   row = packalloc::Tensor();            // now it is back in the pool
//   pool->Clear();                        // and now with the device
//
//   constexpr packalloc::DlDevice kHost{packalloc::DlDevice::kCpu, 0}, kGpu{packalloc::DlDevice::kCuda, 0};
//   auto two = packalloc::TensorPool::Make({{kHost, cpu}, {kGpu, gpu}});
#ifndef PACKALLOC_TENSOR_TENSOR_POOL_H_
#define PACKALLOC_TENSOR_TENSOR_POOL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "packalloc/buffer.h"
#include "packalloc/layers/lru.h"
#include "packalloc/packed_allocator.h"
#include "packalloc/tensor/data_type.h"
#include "packalloc/tensor/device.h"
#include "packalloc/tensor/tensor.h"

namespace packalloc {

// The operations of a pool that a user may replace (TensorPoolOptions::replace), in the manner of the record.
struct TensorPoolFunctions {
  std::function<absl::StatusOr<Tensor>(absl::Span<const std::int64_t> shape, DataType dtype, DlDevice device,
                                       std::string_view mem_scope)>
      empty;
  std::function<absl::StatusOr<Tensor>(const Tensor& backing, absl::Span<const std::int64_t> shape, DataType dtype,
                                       std::size_t byte_offset, std::string_view mem_scope)>
      create_view;
  // Fresh memory of `device` that nobody else has: at least `nbytes` (a multiple of the page size), at that alignment
  // where addresses are pointers. It is released by dropping the Buffer. Called without a lock, from any thread. May
  // use the pool: an Empty of the same pool from inside is not pooled (its memory comes from the device and goes back
  // there), so that neither the call nor the ownership goes in circles.
  std::function<absl::StatusOr<Buffer>(std::size_t nbytes, std::size_t alignment, DlDevice device)> alloc_backing;
};

struct TensorPoolOptions {
  std::size_t page_size = 4096;  // bytes; a power of two. Sizes are rounded up to it: the most that a tensor wastes
  std::size_t alignment = 256;   // of new tensors, bytes; a power of two
  // The most bytes of one device that are kept without being in use; the least recently used go first. Without a limit
  // a pool grows for as long as shapes do.
  std::size_t max_cached_bytes = std::numeric_limits<std::size_t>::max();
  EvictionPolicy policy = EvictionPolicy::kLru;
  // Gets the pool's own functions and returns those to use: the same with some replaced, which may call the ones they
  // replace. Those hold no share in the pool; its `empty` is FAILED_PRECONDITION after its end, and until Make has
  // returned. An unset member is an error.
  std::function<TensorPoolFunctions(TensorPoolFunctions own)> replace{};
};

struct TensorPoolDevice {
  DlDevice device;
  PackedAllocator allocator;
};

// Follows TVM's TensorMemoryPool; where that is silent: a view of a view is relative to that view and bounded by it,
// and tensors from elsewhere (dlpack.h, Tensor::Over) may be viewed too. Copies are the same pool. It lives until the
// last copy and the last tensor in use are gone; then what is cached goes back to the devices. Each device's cache is
// an Lru (layers/lru.h): when a device's memory runs out, what is cached is released before Empty fails; LRU=0 in the
// environment keeps nothing; and a pool over an allocator that has a `+lru` of its own caches everything twice. A pool
// owns memory on the host's side only: one that is reused while a device still works with it must be ordered by the
// caller (one pool per stream, or waiting before reuse), where it is not ordered by the allocator's own stream.
// Thread-safe; no memory is released and no user's function called under a lock.
class TensorPool {
 public:
  TensorPool() = default;  // empty: every call is FAILED_PRECONDITION

  // Over one allocator. INVALID_ARGUMENT for a page size or alignment that is no power of two (0 included), for an
  // allocator that is empty or that DlDeviceOf does not know.
  static absl::StatusOr<TensorPool> Make(const PackedAllocator& allocator, const TensorPoolOptions& options = {});
  // Over several, the first being the default. INVALID_ARGUMENT also for none and for two with the same device.
  static absl::StatusOr<TensorPool> Make(std::vector<TensorPoolDevice> devices, const TensorPoolOptions& options = {});

  // A compact tensor with unspecified contents; unset `device`: the pool's first. Aligned to options.alignment, or to
  // the next power of two of its element's size where that is more (up to kMaxAlignment); where data is an opaque
  // handle, as its device aligns. No elements: no memory and null data. INVALID_ARGUMENT for a shape or type that
  // TensorBytes refuses, a device that the pool does not have, or a `mem_scope` other than "global" (or "");
  // RESOURCE_EXHAUSTED where the device is, with nothing cached any more; else what alloc_backing answers.
  absl::StatusOr<Tensor> Empty(absl::Span<const std::int64_t> shape, DataType dtype,
                               const std::optional<DlDevice>& device = std::nullopt,
                               std::string_view mem_scope = "global") const;

  // A tensor over `backing`'s memory from `byte_offset` on, which keeps it in use. As Tensor::View: up to the rounded
  // capacity of a tensor that Empty gave, up to nbytes() of any other. INVALID_ARGUMENT for another mem_scope.
  absl::StatusOr<Tensor> CreateView(const Tensor& backing, absl::Span<const std::int64_t> shape, DataType dtype,
                                    std::size_t byte_offset = 0, std::string_view mem_scope = "global") const;

  // Releases what is cached, by dropping its Buffers: that a device failed to free one is not told, here and by
  // cache(), and is in no count. Tensors in use stay valid and come back to the pool later.
  absl::Status Clear() const;

  // Bytes that the pool has from its devices: cached and in use, in whole pages.
  std::size_t UsedMemory() const;

  // Statistics and Trim of a device's cache (unset: the first's), which it keeps alive; null for a device that the pool
  // does not have.
  std::shared_ptr<LruControl> cache(std::optional<DlDevice> device = std::nullopt) const;

  std::size_t page_size() const;
  explicit operator bool() const { return state_ != nullptr; }
  friend bool operator==(const TensorPool&, const TensorPool&) = default;

 private:
  class State;
  std::shared_ptr<State> state_;
};

}  // namespace packalloc

#endif  // PACKALLOC_TENSOR_TENSOR_POOL_H_
