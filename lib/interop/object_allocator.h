// The allocator of TVM-FFI's objects behind InstallTvmFfiObjectAllocator, without the library that calls it: small
// objects from a SlabPool through free lists of each thread, others each by itself.
#ifndef PACKALLOC_LIB_INTEROP_OBJECT_ALLOCATOR_H_
#define PACKALLOC_LIB_INTEROP_OBJECT_ALLOCATOR_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/fork_guard.h"
#include "lib/interop/slab_pool.h"
#include "lib/interop/tvm_ffi_abi.h"
#include "lib/interop/type_counts.h"
#include "lib/layers/shard_lock.h"
#include "packalloc/interop/tvm_ffi.h"
#include "packalloc/packed_allocator.h"

namespace packalloc::internal {

struct ObjectHeap;

// Lives as long as the process, because objects do. Thread-safe.
class ObjectAllocator final : private ForkGuarded {
 public:
  using Raise = void (*)(const char* kind, const char* message);

  // `raise` is called where an object cannot be had. Errors as InstallTvmFfiObjectAllocator.
  static absl::StatusOr<ObjectAllocator*> Make(const PackedAllocator& memory, const TvmFfiObjectOptions& options,
                                               Raise raise);

  // What TVMFFISetCustomAllocator takes.
  tvm_ffi_abi::CustomAllocator* entry() { return &entry_; }

  TvmFfiObjectStats stats() const;
  absl::Status Trim() noexcept;
  // How many objects the calling thread has had from here.
  std::uint64_t made_by_this_thread();

 private:
  friend struct ThreadHeaps;

  ObjectAllocator(const PackedAllocator& memory, const TvmFfiObjectOptions& options, Raise raise);
  ~ObjectAllocator() override = default;

  static void* AllocateCallback(std::size_t size, std::size_t alignment, std::int32_t type_index, void* context);
  static void DeleteSpace(void* body) noexcept;

  void* Allocate(std::size_t size, std::size_t alignment, std::int32_t type_index);
  void* AllocateSeparately(ObjectHeap* heap, std::size_t size, std::size_t alignment, std::int32_t type_index);
  std::byte* FromMemory(std::size_t nbytes, std::size_t alignment, AnyBuf& buf);
  void* Fail(const char* kind, const char* why, std::size_t size, std::size_t alignment, std::int32_t type_index);
  static void DropSeparate(void* body) noexcept;
  void DropSmall(void* block, std::size_t block_class, std::int32_t type_index) noexcept;
  void GiveBack(std::size_t block_class, BlockList blocks) noexcept;
  void Refill(ObjectHeap& heap, std::size_t block_class);
  void CountMade(ObjectHeap* heap, std::int32_t type_index, std::size_t bytes);
  void CountDropped(ObjectHeap* heap, std::int32_t type_index, std::size_t bytes);

  // The calling thread's; null where it has none any more, or no memory for one.
  ObjectHeap* HeapOfThread();
  ObjectHeap* FindHeap();
  ObjectHeap* AcquireHeap();
  // Gives the blocks back; the heap is for another thread to go on with.
  void RetireHeap(ObjectHeap* heap) noexcept;
  void EmptyHeap(ObjectHeap& heap) noexcept;

  void BeforeFork() override;
  void AfterFork(bool in_child) override;

  const TvmFfiObjectOptions options_;
  const Raise raise_;
  tvm_ffi_abi::CustomAllocator entry_;
  SlabPool pool_;
  std::atomic<std::uint64_t> malloc_allocations_{0};
  std::atomic<std::uint64_t> failed_allocations_{0};

  std::atomic<ObjectHeap*> heaps_{nullptr};  // all there ever were
  ShardLock lock_;                           // of what follows
  ObjectHeap* idle_heaps_ = nullptr;         // of threads that have ended
  TypeCounts late_;                          // of threads without a heap
};

}  // namespace packalloc::internal

#endif  // PACKALLOC_LIB_INTEROP_OBJECT_ALLOCATOR_H_
