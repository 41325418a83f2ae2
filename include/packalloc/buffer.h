// Buffer: device memory that frees itself. Allocated at first use, shared by its copies, and with views that keep it
// alive; it cannot be freed twice or with a wrong size.
//
//   packalloc::Buffer weights(*packalloc::Open("CUDA+lru"), 1 << 20);            // allocates nothing yet
//   absl::Status written = weights.CopyIn(host_bytes);                           // allocates
//   absl::StatusOr<packalloc::Buffer> row = weights.View(4096, 8192);            // nbytes, byte offset
//   absl::StatusOr<packalloc::DeviceAddress> argument = row->addr();             // for a kernel
//   absl::StatusOr<packalloc::CudaBuf> typed = row->get<packalloc::CudaBuf>();   // the backend's own handle
//
//   auto tensor = std::make_shared<Tensor>();                                    // memory that somebody else owns
//   packalloc::Buffer wrapped = packalloc::Buffer::Wrap(cpu, tensor->data, tensor->nbytes, [tensor]() mutable {
//     tensor.reset(); });
#ifndef PACKALLOC_BUFFER_H_
#define PACKALLOC_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <typeinfo>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "packalloc/copy.h"
#include "packalloc/packed_allocator.h"

namespace packalloc {

// Follows tolk's and tinygrad's Buffer. A Buffer refers to shared state as a shared_ptr does: copies are the same
// buffer and compare equal, and `const` does not protect its bytes. The memory goes back to the allocator when the last
// copy and the last view are gone, in any order and also after every other user of the allocator; never throwing, never
// printing, whatever the allocator's `free` or the deleter does. Default-constructed or moved-from it is empty: it has
// 0 bytes, and what returns a status says FAILED_PRECONDITION.
//
// Thread-safe as far as allocating goes: any number of threads may use a buffer and its views first, and one
// allocation is made. Copies to and from one buffer, and Deallocate against any use, are the caller's to order.
// Exceptions of the allocator's functions pass through and change nothing.
class Buffer {
 public:
  Buffer() = default;
  // A buffer of `nbytes` on `allocator`. Allocates nothing, so a bad spec shows at first use.
  Buffer(PackedAllocator allocator, std::size_t nbytes, const BufferSpec& spec = {});

  // `nbytes` at `data`, which somebody else owns, as a buffer of `allocator` (spec.external_ptr). `deleter`, if set, is
  // called exactly once, when the buffer is released by Deallocate or by its last user's end, used or not, after the
  // allocator has finished with the memory (synchronize) and let it go. An exception of it passes through Deallocate
  // and is dropped in a destructor.
  static Buffer Wrap(PackedAllocator allocator, void* data, std::size_t nbytes, std::function<void()> deleter = {},
                     BufferSpec spec = {});

  explicit operator bool() const { return state_ != nullptr; }
  friend bool operator==(const Buffer&, const Buffer&) = default;

  std::size_t nbytes() const;
  // Of a view: its base's.
  const BufferSpec& spec() const;
  const PackedAllocator& allocator() const;
  const std::string& device() const { return allocator().name(); }  // the backend's: "CUDA:1"
  std::uint64_t id() const;                                         // of this buffer or view; never reused, 0 if empty
  std::uint64_t base_id() const;                                    // id() of base()
  Buffer base() const;                                              // of a view, the buffer that has the memory
  std::size_t offset() const;                                       // in bytes from the start of base()
  bool is_allocated() const;                                        // the base has memory
  bool is_initialized() const;                                      // this buffer or view has a handle to it
  // Grows with each allocation of the base: addresses recorded under another generation are stale. 0: never allocated.
  std::uint64_t generation() const;
  bool supports_offset() const { return allocator().supports_offset(); }
  // True if allocator().transfer can copy between the two.
  bool supports_transfer(const Buffer& other) const;

  // Allocates; of a view, the base too where it has no memory yet. FAILED_PRECONDITION if already done, or where the
  // memory was Wrapped and its deleter has run; else the allocator's error (RESOURCE_EXHAUSTED, INVALID_ARGUMENT).
  absl::Status Allocate() const;
  // As Allocate, and OK if already done.
  absl::Status EnsureAllocated() const;
  // Gives the memory back; the buffer can be allocated again. A view lets go of its base's memory. FAILED_PRECONDITION
  // where there is none, or where views of this buffer are allocated (deallocate or drop them first). After an error of
  // the allocator's `free` the buffer is still allocated.
  absl::Status Deallocate() const;

  // A view of `nbytes` from `byte_offset` of this buffer (of a view: relative to it) on, not allocated yet.
  // OUT_OF_RANGE outside this buffer, UNIMPLEMENTED where the allocator has no offset.
  absl::StatusOr<Buffer> View(std::size_t nbytes, std::size_t byte_offset) const;

  // Each of the following allocates at first use. Their errors are Allocate's and those of the allocator's member.

  // Host to device: src.size() bytes to the start. OUT_OF_RANGE, and nothing written, for more than nbytes().
  absl::Status CopyIn(absl::Span<const std::byte> src) const;
  // Device to host: dest.size() bytes from the start. OUT_OF_RANGE, and nothing written, for more than nbytes().
  absl::Status CopyOut(absl::Span<std::byte> dest) const;
  // All of `src`, whatever its backend, by the best way that both sides know (copy.h); as if by memmove where they
  // overlap. INVALID_ARGUMENT, and nothing written, where the sizes differ.
  absl::StatusOr<CopyReport> CopyFrom(const Buffer& src, const CopyOptions& options = {}) const;
  // Allocator and handle together, as CopyAll takes them. The buffer must outlive their use.
  absl::StatusOr<BufferRef> ref() const;
  // Addresses and handles are valid until the memory is given back; generation() tells.
  absl::StatusOr<DeviceAddress> addr() const;
  absl::StatusOr<std::byte*> host_ptr() const;
  absl::StatusOr<AnyBuf> handle() const;
  // The backend's own handle. INVALID_ARGUMENT where it is of another type.
  template <typename Buf>
  absl::StatusOr<Buf> get() const {
    absl::StatusOr<AnyBuf> any = handle();
    if (!any.ok()) return any.status();
    if (const Buf* typed = any->get<Buf>()) return *typed;
    return internal::WrongType(*any, typeid(Buf));
  }

 private:
  struct State;
  explicit Buffer(std::shared_ptr<State> state) : state_(std::move(state)) {}

  std::shared_ptr<State> state_;
};

}  // namespace packalloc

#endif  // PACKALLOC_BUFFER_H_
