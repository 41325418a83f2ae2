// TVM-FFI (apache-tvm-ffi, libtvm_ffi.so) on allocators of this library: its objects from a slab over host memory, with
// a report of what leaks, and its tensors from a TensorPool.
//
//   absl::StatusOr<packalloc::TvmFfiObjectAllocator> objects =
//       packalloc::InstallTvmFfiObjectAllocator(*packalloc::Open("CPU"));       // after `import tvm_ffi`, once
//   if (!*objects->Probe()) { /* this libtvm_ffi.so makes its objects without asking the allocator */ }
//   ...
//   std::cout << objects->LeakReport();                // "2 objects of type 65 (ffi.String) hold 192 bytes\n"
//
//   absl::StatusOr<packalloc::TvmFfiTensorAllocator> tensors =
//       packalloc::InstallTvmFfiTensorAllocator(*packalloc::TensorPool::Make(*packalloc::Open("CUDA")));
//   // TVMFFIEnvTensorAlloc, tvm::ffi::Tensor::FromEnvAlloc: from the pool
//
// Built without TVM-FFI's headers and not linked to it: its C functions are looked up in the process, then in
// libtvm_ffi.so. Follows tvm/ffi/c_api.h and extra/c_env_api.h of version 0.1.
#ifndef PACKALLOC_INTEROP_TVM_FFI_H_
#define PACKALLOC_INTEROP_TVM_FFI_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "packalloc/buffer_spec.h"
#include "packalloc/packed_allocator.h"

namespace packalloc {

class TensorPool;

namespace internal {
struct InstalledTvmFfiObjects;
struct InstalledTvmFfiTensors;
}  // namespace internal

// What an object's maker gets when there is no memory for it.
enum class TvmFfiOutOfMemory {
  // TVM-FFI's contract: the error is raised (TVMFFIErrorSetRaisedFromCStr, of kind MemoryError) and NULL returned. For
  // makers that look at the result, such as code in C.
  kRaiseAndReturnNull,
  // std::bad_alloc. For processes whose makers are C++ compiled with the headers of 0.1.13, which construct the object
  // at NULL, that is crash, but pass an exception through, and turn it into a raised error where C begins.
  kThrowBadAlloc,
};

struct TvmFfiObjectOptions {
  // Of the memory that is asked for: {.host = true} for page-locked memory of a CUDA allocator. `alignment`, `zero` and
  // `external_ptr` must be unset.
  BufferSpec spec{};
  // Where the allocator has no memory, objects come from malloc, counted in stats(). False: there is no object then.
  bool malloc_fallback = true;
  TvmFfiOutOfMemory out_of_memory = TvmFfiOutOfMemory::kRaiseAndReturnNull;
  // Path of libtvm_ffi.so. Empty: what the process has loaded, else "libtvm_ffi.so" where the system looks.
  std::string library{};
};

// Of the objects of one type since the allocator was installed.
struct TvmFfiTypeStats {
  std::int32_t type_index = 0;  // -1: all those above 8191 together
  std::uint64_t allocations = 0;
  std::uint64_t live = 0;        // allocated and not yet released
  std::uint64_t live_bytes = 0;  // of their blocks: rounded to a size class, 16 bytes of header included
};

struct TvmFfiObjectStats {
  std::uint64_t allocations = 0;
  std::uint64_t live = 0;
  std::uint64_t live_bytes = 0;
  std::uint64_t malloc_allocations = 0;  // of `allocations`, those that came from malloc
  std::uint64_t failed_allocations = 0;  // answered with NULL or std::bad_alloc
  std::uint64_t failed_releases = 0;     // times that the PackedAllocator would not take memory back
  std::size_t slabs = 0;                 // slabs of 64 KiB held, in use or in reserve
  std::vector<TvmFfiTypeStats> types{};  // with any allocation, by type_index
};

// A handle; copies are the same. Thread-safe, but for Uninstall.
class TvmFfiObjectAllocator {
 public:
  TvmFfiObjectAllocator() = default;  // empty: every call is FAILED_PRECONDITION, stats() all 0

  // Whether libtvm_ffi.so's own objects come from the allocator: makes a string and looks. Whether an object does is
  // decided by the headers that its maker was compiled with: those of 0.1.13 ask the allocator, those of the releases
  // since, up to 0.1.15.post2, do not. The string counts in stats(). INTERNAL where the library makes none.
  absl::StatusOr<bool> Probe() const;

  // Sums that other threads may be changing: exact when no object is made or dropped meanwhile.
  TvmFfiObjectStats stats() const;

  // A line for each type with live objects: how many, which type, how many bytes. Empty where there are none. Names
  // come from TVMFFIGetTypeInfo, which ends the process for an index that is not registered: so does this, where an
  // object was allocated under one.
  std::string LeakReport() const;

  // Gives unused slabs back, the calling thread's unused blocks included (other threads hold up to 64 of a size each).
  // What the PackedAllocator answers; the first error of several.
  absl::Status Trim() const;

  // Makes the allocator that was there before the library's again. Objects that are alive stay so, are counted, and are
  // released as ever. No other thread may make objects meanwhile (TVMFFISetCustomAllocator is not synchronised).
  // FAILED_PRECONDITION where another allocator has been installed since: that one goes first; or a second time.
  absl::Status Uninstall() const;

 private:
  friend absl::StatusOr<TvmFfiObjectAllocator> InstallTvmFfiObjectAllocator(const PackedAllocator&,
                                                                            const TvmFfiObjectOptions&);
  std::shared_ptr<internal::InstalledTvmFfiObjects> installed_;
};

// Objects of TVM-FFI from `packed`, for the whole process. Small ones (up to 4080 bytes) from slabs of 64 KiB by size
// class, with free lists of each thread's own; larger ones, and those aligned to more than alignof(std::max_align_t),
// from an allocation of their own. They may be dropped on any thread, also after Uninstall and while the process ends:
// what is installed lives as long as the process, `packed` too. `packed` may itself make objects (a layer with a
// callback in Python, say): those come from malloc where it is in the middle of an allocation. Usable in a forked child
// where `packed` is. `import tvm_ffi` sets an allocator of its own: install after it. Objects of this allocator are
// wrapped in Python anew each time (`a[0] is a[0]` is false), as those made before the import are.
// No other thread may make objects meanwhile. UNAVAILABLE where there is no libtvm_ffi.so; UNIMPLEMENTED for one that
// is not of version 0.1 or has no such hook (it came with 0.1.13); INVALID_ARGUMENT for an empty allocator and a spec
// as said above; FAILED_PRECONDITION where the memory is not the host's (no host_ptr); INTERNAL where it is not aligned
// as asked; else what `packed` answers to being asked for one slab.
absl::StatusOr<TvmFfiObjectAllocator> InstallTvmFfiObjectAllocator(const PackedAllocator& packed,
                                                                   const TvmFfiObjectOptions& options = {});

struct TvmFfiTensorOptions {
  // For the calling thread instead of the process. Such an allocator goes before the process's; it is uninstalled on
  // the same thread, before the thread ends.
  bool this_thread_only = false;
  std::string library{};  // as TvmFfiObjectOptions::library
};

// A handle; copies are the same. Thread-safe.
class TvmFfiTensorAllocator {
 public:
  TvmFfiTensorAllocator() = default;  // empty: FAILED_PRECONDITION

  // Makes the allocator that was there before TVM-FFI's again and lets go of the pool. Tensors that are alive stay so.
  // FAILED_PRECONDITION where another has been installed since (that one goes first), on another thread than the one
  // that it is for, or a second time.
  absl::Status Uninstall() const;

 private:
  friend absl::StatusOr<TvmFfiTensorAllocator> InstallTvmFfiTensorAllocator(const TensorPool&,
                                                                            const TvmFfiTensorOptions&);
  std::shared_ptr<internal::InstalledTvmFfiTensors> installed_;
};

// What TVM-FFI asks its environment for tensors (TVMFFIEnvTensorAlloc) comes from `pool`, which is kept until
// Uninstall; each tensor keeps it too. A thread on which somebody has set an allocator keeps that. Where an allocation
// of the pool itself asks TVM-FFI for a tensor, it gets one from the allocator that was there before, or an error where
// there was none, so that it does not go in circles. Errors are raised as MemoryError (RESOURCE_EXHAUSTED), ValueError
// (INVALID_ARGUMENT) and RuntimeError. UNAVAILABLE and UNIMPLEMENTED as InstallTvmFfiObjectAllocator;
// INVALID_ARGUMENT for an empty pool.
absl::StatusOr<TvmFfiTensorAllocator> InstallTvmFfiTensorAllocator(const TensorPool& pool,
                                                                   const TvmFfiTensorOptions& options = {});

}  // namespace packalloc

#endif  // PACKALLOC_INTEROP_TVM_FFI_H_
