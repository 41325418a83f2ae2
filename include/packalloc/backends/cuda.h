// CUDA: NVIDIA devices through the driver API. The driver (libcuda.so.1, or the library that PACKALLOC_LIBCUDA names)
// is loaded when first asked for, so one program runs with and without it, and neither the CUDA runtime nor its headers
// are needed to use this one. Device memory, pinned host memory (`host`), managed memory (`cpu_access`), every copy
// ordered on one stream: the engine's own, or one that the record makes.
//
//   absl::StatusOr<packalloc::Allocator<packalloc::CudaBuf>> cuda = packalloc::CudaAllocator({.stream = my_stream});
//   if (!cuda.ok()) return cuda.status();                       // UNAVAILABLE: "no libcuda.so.1: ..."
//   absl::StatusOr<packalloc::CudaBuf> x = cuda->alloc(4096, {});
//   absl::Status copied = cuda->copyin(*x, bytes);              // staged: `bytes` may be reused at once
//   void* arguments[] = {&x->ptr};
//   cuLaunchKernel(kernel, 1, 1, 1, 256, 1, 1, 0, my_stream, arguments, nullptr);     // sees the bytes
//   absl::Status read = cuda->copyout(result, *x);              // waits for the kernel
//   absl::Status freed = cuda->free(*x, 4096, {});
//
//   auto packed = packalloc::Open("CUDA:1+lru");                // by name, with a cache: what most programs want
//   auto native = packalloc::Find<packalloc::CudaNative>(*packed);   // its context and stream, to launch kernels on
#ifndef PACKALLOC_BACKENDS_CUDA_H_
#define PACKALLOC_BACKENDS_CUDA_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "packalloc/allocator.h"

struct CUctx_st;     // CUcontext is CUctx_st*
struct CUstream_st;  // CUstream is CUstream_st*

namespace packalloc {

enum class CudaMemory : std::uint8_t {
  kDevice,   // cuMemAlloc, or cuMemAllocAsync
  kPinned,   // page-locked host memory: BufferSpec::host
  kManaged,  // cuMemAllocManaged: BufferSpec::cpu_access
};

// The handle. `ptr` is the CUdeviceptr of its first byte, a view's offset included; of pinned and managed memory it is
// the host address too (unified addressing). `stream_id` tells transfer on which record's stream the buffer's work is
// ordered; 0 (a handle that somebody else filled in): on no record's, so the caller orders it.
struct CudaBuf {
  unsigned long long ptr = 0;
  std::size_t nbytes = 0;
  std::uint32_t stream_id = 0;
  std::int16_t device = 0;
  CudaMemory kind = CudaMemory::kDevice;
};

enum class CudaAllocation {
  kDriver,         // cuMemAlloc: meant to lie under a cache of this library
  kStreamOrdered,  // cuMemAllocAsync from the device's default pool: neither alloc nor free waits for the stream
};

struct CudaOptions {
  int device = 0;               // its number, as the driver counts (CUDA_VISIBLE_DEVICES applies)
  CUctx_st* context = nullptr;  // the caller's, of `device`, alive as long as the record; null: the primary one
  std::optional<CUstream_st*> stream{};  // the caller's, of that context, as long; null is the legacy default stream;
                                         // unset: the record makes one (which the legacy default stream orders with)
  CudaAllocation allocation = CudaAllocation::kDriver;
  // Bytes that the default pool keeps instead of giving them back at each synchronisation; for kStreamOrdered. It is a
  // setting of the device for the whole process, so unset leaves it alone.
  std::optional<std::uint64_t> pool_release_threshold{};
  // copyin goes through a ring of page-locked slots, each made when first needed. false: straight from the caller's
  // memory, waiting for each copy.
  bool pinned_staging = true;
  std::size_t staging_slot_bytes = std::size_t{4} << 20;  // of one slot; rounded up to whole pages
  std::size_t staging_slots = 4;                          // at most
};

// Page-locked host memory is scarce, so it is counted apart.
struct CudaStats {
  std::size_t staging_bytes = 0;  // page-locked for the ring now
  std::size_t staging_slots = 0;
  bool staging_is_pinned = true;  // false: not asked for, or page-locking failed, and copyin waits for each copy
  std::size_t pinned_bytes = 0;   // of buffers allocated with `host` and not freed, as the driver sees them
  std::size_t pinned_buffers = 0;
  std::size_t deferred_frees = 0;  // given back during a graph capture, not yet released
};

// What a CUDA record offers beside the record: Find<CudaNative>(record). Thread-safe.
class CudaNative {
 public:
  virtual ~CudaNative() = default;
  virtual int device() const = 0;
  virtual CUctx_st* context() const = 0;    // valid as long as the record; not to be destroyed
  virtual CUstream_st* stream() const = 0;  // likewise; kernels launched on it are ordered with the record's copies
  virtual CudaStats stats() const = 0;
};

// A record over one device, one context and one stream. Members as Allocator<Buf> says; beyond that:
//  - All work is issued on the stream, in the order of the calls. copyin returns when the source is consumed, copyout
//    when the destination is filled; transfer returns when the copy is ordered on the streams of both buffers. Two
//    records have two streams: only transfer orders one with the other.
//  - free of driver memory waits for the stream first (kStreamOrdered: is ordered on it). Work on other streams of the
//    caller's must be done before.
//  - The context is pushed for the length of a call and popped again, also on errors: the calling thread's current
//    context stays as it was.
//  - While the stream is captured into a graph, transfer (inside one record, where it needs no other memory) is
//    captured. copyin, copyout, synchronize and whatever needs memory of the driver are FAILED_PRECONDITION, and leave
//    the capture whole. free then succeeds and is put off until the first call after the capture (of external
//    memory, which nobody may put off for its owner, it is FAILED_PRECONDITION).
//  - Spec: `host` pinned (with `uncached` write-combined), `cpu_access` managed (`uncached` with it is refused),
//    external_ptr an address of this device or a page-locked one with `host`; alignment any power of two.
//  - Codes beside the contract's: DATA_LOSS once the context is lost (an illegal address, a trap, an ECC error, ...):
//    every later call gives the same answer without touching the driver, and free succeeds, for the memory is gone.
//    UNAVAILABLE when the driver has shut down (at process exit; free then succeeds). FAILED_PRECONDITION in a forked
//    child, from every member: CUDA does not survive a fork.
// The record's last copy waits for the stream and releases what it made.
// UNAVAILABLE where there is no usable driver or device, with the reason; NOT_FOUND for a device that is not there;
// INVALID_ARGUMENT for options that make no sense; else what the driver answers. Thread-safe.
// Entry points, error codes and their meaning are the CUDA driver API's; the options follow tinygrad's CUDA device and
// RMM's cuda_memory_resource and cuda_async_memory_resource.
absl::StatusOr<Allocator<CudaBuf>> CudaAllocator(const CudaOptions& options = {});

}  // namespace packalloc

#endif  // PACKALLOC_BACKENDS_CUDA_H_
