// DLPack: tensors handed to other libraries and taken from them (NumPy, PyTorch, JAX, TVM, ...), without a copy.
//
//   absl::StatusOr<packalloc::DlpackVersionedPtr> out = packalloc::ToDlpackVersioned(tensor);
//   consumer_takes(out->release());                        // the consumer calls the deleter; not taken: we do
//
//   absl::StatusOr<packalloc::Tensor> in = packalloc::FromDlpack(managed);       // a CPU tensor of somebody else
//   if (!in.ok()) managed->deleter(managed);                                     // an error leaves it the caller's
//   absl::StatusOr<packalloc::Tensor> on_gpu = packalloc::FromDlpack(managed, {.allocator = gpu});
//
//   packalloc::Buffer weights(cpu, 4096);                                        // a Buffer goes out as a Tensor
//   auto exported = packalloc::ToDlpackVersioned(*packalloc::Tensor::Over(weights, {1024}, packalloc::kFloat32));
//
// The structs are those of any dlpack.h (1.0 or later for the versioned one): include the one you have.
#ifndef PACKALLOC_TENSOR_DLPACK_H_
#define PACKALLOC_TENSOR_DLPACK_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "packalloc/buffer.h"
#include "packalloc/packed_allocator.h"
#include "packalloc/tensor/tensor.h"

// DLPack's own, so that this header needs no dlpack.h.
struct DLManagedTensor;
struct DLManagedTensorVersioned;

namespace packalloc {

// Calls the struct's own deleter, if it has one.
struct DlpackDeleter {
  void operator()(DLManagedTensor* managed) const noexcept;
  void operator()(DLManagedTensorVersioned* managed) const noexcept;
};
using DlpackPtr = std::unique_ptr<DLManagedTensor, DlpackDeleter>;
using DlpackVersionedPtr = std::unique_ptr<DLManagedTensorVersioned, DlpackDeleter>;

struct ToDlpackOptions {
  bool is_copied = false;  // tells the consumer that the tensor was copied for it (DLPACK_FLAG_BITMASK_IS_COPIED)
};

// `tensor` for another library, which shares its memory and may outlive everything else of it. The deleter may be
// called on any thread, also after the pool and its allocators are gone; it keeps this library loaded. Strides are
// filled; where addresses are pointers `data` has the offset folded in and byte_offset is 0 (some consumers ignore
// it), where they are opaque handles both are kept; without elements `data` is NULL. New tensors of a pool are aligned
// to 256 bytes as DLPack asks; a view is where it is. Nothing is synchronised: order the consumer's work after yours.
// FAILED_PRECONDITION for an empty tensor. Thread-safe. The struct is of DLPack 1.3.
absl::StatusOr<DlpackVersionedPtr> ToDlpackVersioned(const Tensor& tensor, const ToDlpackOptions& options = {});

// The struct from before version 1.0, for consumers that know no other. FAILED_PRECONDITION also for what it cannot
// say: read-only memory, and sub-byte elements that are padded.
absl::StatusOr<DlpackPtr> ToDlpack(const Tensor& tensor);

struct FromDlpackOptions {
  // Whose copies and views are used on the memory; of the device that the tensor is on. Unset: the CPU's for host
  // memory (CPU, pinned CUDA and ROCm); else the tensor has an address, views and exports, but no copies.
  PackedAllocator allocator{};
};

// A tensor of another library. On success it belongs to the result, and its deleter (which may be NULL) is called once,
// when the last user of the memory is gone, on that thread. After an error it is still the caller's, unchanged. Strides
// may be NULL. Read-only memory cannot be written through the result, and stays read-only in exports. Flags that are
// not known are ignored. Follows DLPack 1.3.
// UNIMPLEMENTED for another major version, of which nothing else is read, and for an `allocator` whose addresses are
// opaque handles; INVALID_ARGUMENT for NULL, a malformed shape, data type or address, for strides that are not those
// of a compact row-major tensor (dimensions of size 1 and tensors without elements have any), and for an allocator of
// another device; else what the allocator answers to wrapping the memory (BufferSpec::external_ptr).
absl::StatusOr<Tensor> FromDlpack(DLManagedTensorVersioned* managed, const FromDlpackOptions& options = {});
absl::StatusOr<Tensor> FromDlpack(DLManagedTensor* managed, const FromDlpackOptions& options = {});

// The same as plain bytes: a Buffer of the tensor's nbytes.
absl::StatusOr<Buffer> BufferFromDlpack(DLManagedTensorVersioned* managed, const FromDlpackOptions& options = {});
absl::StatusOr<Buffer> BufferFromDlpack(DLManagedTensor* managed, const FromDlpackOptions& options = {});

}  // namespace packalloc

#endif  // PACKALLOC_TENSOR_DLPACK_H_
