// Allocator<Buf>: device memory as a plain struct of functions. A backend is a function that returns one, a layer a
// function from one to another; nothing needs a base class, and a mock is a handful of lambdas.
//
//   packalloc::Allocator<void*> heap;
//   heap.traits.name = "HEAP";
//   heap.alloc = [](std::size_t n, const BufferSpec&) -> absl::StatusOr<void*> { return std::malloc(n); };
//   heap.free = [](void* const& p, std::size_t, const BufferSpec&) { std::free(p); return absl::OkStatus(); };
//   heap.copyin = [](void* const& dest, absl::Span<const std::byte> src) {
//     std::memcpy(dest, src.data(), src.size()); return absl::OkStatus(); };
//   heap.copyout = [](absl::Span<std::byte> dest, void* const& src) {
//     std::memcpy(dest.data(), src, dest.size()); return absl::OkStatus(); };
//   heap.addr = [](void* const& p) { return DeviceAddress{reinterpret_cast<std::uintptr_t>(p), 0}; };
//   absl::StatusOr<packalloc::PackedAllocator> packed = packalloc::Pack(heap);   // packed_allocator.h
#ifndef PACKALLOC_ALLOCATOR_H_
#define PACKALLOC_ALLOCATOR_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "packalloc/buffer_spec.h"

namespace packalloc {

// Where a kernel finds a buffer. Where AllocatorTraits::address_is_pointer, `value` is the pointer with every offset
// folded in and `byte_offset` is 0. Elsewhere `value` is an opaque handle (a cl_mem) on which nobody does arithmetic,
// and `byte_offset` is the view's distance from the handle's start.
struct DeviceAddress {
  std::uintptr_t value = 0;
  std::size_t byte_offset = 0;
  friend bool operator==(const DeviceAddress&, const DeviceAddress&) = default;
};

// Device memory in bytes, as the driver tells it.
struct MemoryInfo {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
};

class DiskFile;  // an open file: packalloc/disk_file.h

// `nbytes` bytes of an open file, from byte `offset` on. The handle (`Buf`) of the DISK backend, and the source of
// copy_from_disk. Keeps the file open.
struct DiskExtent {
  std::shared_ptr<DiskFile> file;
  std::uint64_t offset = 0;
  std::uint64_t nbytes = 0;
};

// What a record says of itself. Plain values; a layer copies them from the record that it wraps.
struct AllocatorTraits {
  std::string name{};                                                        // "CUDA:1"; layers do not show
  std::size_t min_alignment = 1;                                             // bytes, promised for spec.alignment == 0
  std::size_t max_alloc_bytes = std::numeric_limits<std::ptrdiff_t>::max();  // largest single allocation, in bytes
  bool address_is_pointer = true;                                            // see DeviceAddress
  // Records with the same id (and the same Buf) can transfer between each other's buffers. 0: only within itself.
  std::uint32_t transfer_domain = 0;
  // Records with the same id draw on the same physical memory: when it runs out, caches over any of them are asked to
  // give back. 0: nobody else's.
  std::uint32_t memory_domain = 0;
};

// A process-wide id that was never handed out before, for the domains of AllocatorTraits. Thread-safe.
std::uint32_t NewDomain();

// What backends and layers offer beside the record (cache statistics, a native context, a mock's call log), found by
// type. Copies share the offered objects.
class Controls {
 public:
  // Offers `control`; of several of one type the last added (the outermost layer's) is found first.
  template <typename T>
  void Add(std::shared_ptr<T> control) {
    entries_.push_back({&typeid(T), std::move(control)});
  }

  // The outermost control of type T, or null.
  template <typename T>
  std::shared_ptr<T> Find() const {
    for (auto it = entries_.rbegin(); it != entries_.rend(); ++it) {
      if (*it->type == typeid(T)) return std::static_pointer_cast<T>(it->object);
    }
    return nullptr;
  }

 private:
  struct Entry {
    const std::type_info* type;
    std::shared_ptr<void> object;
  };
  std::vector<Entry> entries_;
};

// The record. `Buf` is the backend's own handle: a copyable value, like a pointer; copying it copies no memory.
// Contract, which packalloc/testing/contract.h holds a backend to:
//  - Every member may be called from any thread; calls on one buffer are the caller's to order. Operations take effect
//    in the order issued. Copies of a record share one state, which every copy keeps alive.
//  - Errors: RESOURCE_EXHAUSTED where memory ran out (that code and no other makes a cache release and retry),
//    INVALID_ARGUMENT for a bad spec, size or handle, OUT_OF_RANGE for bytes outside a buffer, FAILED_PRECONDITION for
//    a state that forbids the call. After an error nothing has changed.
//  - What a user's callback throws passes through unchanged.
// Follows tolk's Device.Allocator and tinygrad's Allocator.
template <typename Buf>
struct Allocator {
  // Required.

  // `nbytes` usable bytes, uninitialised unless spec.zero, aligned to spec.alignment or traits.min_alignment. The
  // caller frees them. 0 bytes: an empty buffer without a driver call. Above PTRDIFF_MAX, the size of a negative
  // number: INVALID_ARGUMENT (a packed allocator asks for it before it calls).
  std::function<absl::StatusOr<Buf>(std::size_t nbytes, const BufferSpec& spec)> alloc;
  // Takes back what alloc gave, with the same `nbytes` and `spec`; safe while earlier operations are pending. With
  // external_ptr it releases the handle only. A view is not freed.
  std::function<absl::Status(const Buf& buf, std::size_t nbytes, const BufferSpec& spec)> free;
  // Host to device, src.size() bytes to the start of `dest`. `src` is consumed on return (the caller may reuse it);
  // every later operation of the record sees the bytes.
  std::function<absl::Status(const Buf& dest, absl::Span<const std::byte> src)> copyin;
  // Device to host, dest.size() bytes from the start of `src`. Complete on return.
  std::function<absl::Status(absl::Span<std::byte> dest, const Buf& src)> copyout;
  // What the backend's kernels take; valid as long as the buffer.
  std::function<DeviceAddress(const Buf& buf)> addr;

  // Optional: empty means "this backend cannot".

  // A view of `nbytes` at `byte_offset` of `buf` (of a view: relative to that view). Any byte offset. Owns nothing.
  std::function<absl::StatusOr<Buf>(const Buf& buf, std::size_t nbytes, std::size_t byte_offset)> offset;
  // Copies `nbytes` inside the transfer domain, as if by memmove.
  std::function<absl::Status(const Buf& dest, const Buf& src, std::size_t nbytes)> transfer;
  // Reads the first `nbytes` of `src` into `dest` by the fastest way there is. Ordered as copyin.
  std::function<absl::Status(const Buf& dest, const DiskExtent& src, std::size_t nbytes)> copy_from_disk;
  // Where the CPU may read and write this very buffer (after synchronize; what it writes the device sees after the
  // next), or FAILED_PRECONDITION for one that is not host memory. Valid as long as the buffer.
  std::function<absl::StatusOr<std::byte*>(const Buf& buf)> host_ptr;
  std::function<absl::StatusOr<MemoryInfo>()> memory_info;
  // Waits until all that was issued through the record is done.
  std::function<absl::Status()> synchronize;

  AllocatorTraits traits;
  Controls controls;

  bool supports_offset() const { return static_cast<bool>(offset); }
  bool supports_transfer() const { return static_cast<bool>(transfer); }
  bool supports_copy_from_disk() const { return static_cast<bool>(copy_from_disk); }
};

// The control of type T that the outermost layer (or, last, the backend) offers, or null. Thread-safe.
//   if (auto cache = packalloc::Find<packalloc::LruControl>(record)) cache->Clear();
template <typename T, typename Buf>
std::shared_ptr<T> Find(const Allocator<Buf>& record) {
  return record.controls.template Find<T>();
}

// The members of a record, where one is spoken of: in a mock's script and log, in a Failing rule.
enum class Member {
  kAlloc,
  kFree,
  kCopyin,
  kCopyout,
  kAddr,
  kOffset,
  kTransfer,
  kCopyFromDisk,
  kHostPtr,
  kMemoryInfo,
  kSynchronize,
};
inline constexpr std::size_t kMembers = static_cast<std::size_t>(Member::kSynchronize) + 1;
// "alloc", "copy_from_disk".
std::string_view ToString(Member member);

}  // namespace packalloc

#endif  // PACKALLOC_ALLOCATOR_H_
