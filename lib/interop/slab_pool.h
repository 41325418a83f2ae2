// Blocks of a few fixed sizes, cut from slabs of a PackedAllocator's host memory: what all threads share. Each keeps a
// few blocks of its own (object_allocator.h) and comes here for a batch.
#ifndef PACKALLOC_LIB_INTEROP_SLAB_POOL_H_
#define PACKALLOC_LIB_INTEROP_SLAB_POOL_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/layers/shard_lock.h"
#include "packalloc/buffer_spec.h"
#include "packalloc/packed_allocator.h"

namespace packalloc::internal {

// Slabs are aligned to their size, so that a block finds its slab without a pointer to it.
inline constexpr std::size_t kSlabBytes = std::size_t{64} << 10;

// Sizes of blocks: every multiple of 16 up to 256, then four in each doubling.
inline constexpr std::size_t kBlockStep = 16;
inline constexpr std::size_t kLargestBlock = 4096;
inline constexpr std::size_t kBlockClasses = 32;
inline constexpr std::array<std::uint32_t, kBlockClasses> kBlockBytes = [] {
  std::array<std::uint32_t, kBlockClasses> sizes{};
  std::uint32_t bytes = 0;
  std::uint32_t step = kBlockStep;
  for (std::size_t i = 0; i < kBlockClasses; ++i) {
    if (i >= 16 && i % 4 == 0) step *= 2;
    if (i == 16) step = 64;
    bytes += step;
    sizes[i] = bytes;
  }
  return sizes;
}();
static_assert(kBlockBytes.back() == kLargestBlock);

// The smallest class of at least `bytes`, from 1 to kLargestBlock.
inline std::size_t BlockClassOf(std::size_t bytes) {
  static constexpr std::array<std::uint8_t, kLargestBlock / kBlockStep + 1> kClasses = [] {
    std::array<std::uint8_t, kLargestBlock / kBlockStep + 1> classes{};
    std::size_t block_class = 0;
    for (std::size_t i = 0; i < classes.size(); ++i) {
      if (i * kBlockStep > kBlockBytes[block_class]) ++block_class;
      classes[i] = static_cast<std::uint8_t>(block_class);
    }
    return classes;
  }();
  return kClasses[(bytes + kBlockStep - 1) / kBlockStep];
}

inline BufferSpec WithAlignment(BufferSpec spec, std::size_t alignment) {
  spec.alignment = alignment;
  return spec;
}

// How many blocks of a class go between a thread and the pool at a time.
inline constexpr std::array<std::uint32_t, kBlockClasses> kBlockBatch = [] {
  std::array<std::uint32_t, kBlockClasses> batches{};
  for (std::size_t i = 0; i < kBlockClasses; ++i) batches[i] = std::clamp<std::uint32_t>(8192 / kBlockBytes[i], 4, 32);
  return batches;
}();

// A block that nobody uses, linked through its first bytes.
struct FreeBlock {
  FreeBlock* next;
};

struct BlockList {
  FreeBlock* head = nullptr;
  std::uint32_t count = 0;

  void Push(void* memory) {
    auto* block = static_cast<FreeBlock*>(memory);
    block->next = head;
    head = block;
    ++count;
  }
  FreeBlock* Pop() {
    FreeBlock* block = head;
    if (block != nullptr) {
      head = block->next;
      --count;
    }
    return block;
  }
  // The first `wanted` blocks, or all.
  BlockList Split(std::uint32_t wanted) {
    BlockList first;
    while (first.count < wanted && head != nullptr) first.Push(Pop());
    return first;
  }
};

// Thread-safe. Calls the PackedAllocator without a lock.
class SlabPool {
 public:
  // `owner` is what OwnerOf answers for the pool's blocks.
  SlabPool(void* owner, PackedAllocator memory, const BufferSpec& spec);
  SlabPool(const SlabPool&) = delete;
  SlabPool& operator=(const SlabPool&) = delete;

  // Whether the allocator can give a slab at all: its error, FAILED_PRECONDITION where the CPU cannot reach the memory,
  // INTERNAL where it is not aligned.
  absl::Status Check();

  // Up to `count` blocks, from slabs that there are.
  BlockList Take(std::size_t block_class, std::uint32_t count);
  // `count` blocks of a new slab. What the allocator answers or throws, and then nothing has changed.
  absl::StatusOr<BlockList> Grow(std::size_t block_class, std::uint32_t count);
  // Takes blocks back. A slab of which no block is in use any more is kept in reserve, one of a class; with
  // `may_release` others go back to the allocator.
  void Give(std::size_t block_class, BlockList blocks, bool may_release) noexcept;
  // Releases those in reserve too.
  absl::Status Trim() noexcept;

  static void* OwnerOf(const void* inside_block) { return SlabOf(inside_block)->owner; }

  const PackedAllocator& memory() const { return memory_; }
  const BufferSpec& spec() const { return slab_spec_; }
  std::size_t slabs() const { return slabs_.load(std::memory_order_relaxed); }
  std::uint64_t failed_releases() const { return failed_releases_.load(std::memory_order_relaxed); }
  // free of memory that came from memory(); an error or exception is counted and returned.
  absl::Status Release(const AnyBuf& buf, std::size_t nbytes, const BufferSpec& spec) noexcept;

  // For a fork.
  void Lock() { lock_.lock(); }
  void Unlock() { lock_.unlock(); }

 private:
  struct Slab;
  struct SlabHead {  // where every slab begins
    void* owner;
  };
  struct Class {
    Slab* usable = nullptr;    // slabs with a block to give, linked both ways
    std::uint32_t unused = 0;  // those of them with no block in use
  };

  static const SlabHead* SlabOf(const void* inside) {
    const std::uintptr_t offset = reinterpret_cast<std::uintptr_t>(inside) % kSlabBytes;
    return reinterpret_cast<const SlabHead*>(static_cast<const std::byte*>(inside) - offset);
  }
  absl::StatusOr<Slab*> NewSlab(std::size_t block_class);
  BlockList TakeLocked(std::size_t block_class, std::uint32_t count);
  void LinkLocked(Class& of, Slab* slab);
  void UnlinkLocked(Class& of, Slab* slab);
  absl::Status ReleaseSlabs(Slab* first) noexcept;

  void* const owner_;
  const PackedAllocator memory_;
  const BufferSpec slab_spec_;
  ShardLock lock_;
  std::array<Class, kBlockClasses> classes_;
  std::atomic<std::size_t> slabs_{0};
  std::atomic<std::uint64_t> failed_releases_{0};
};

}  // namespace packalloc::internal

#endif  // PACKALLOC_LIB_INTEROP_SLAB_POOL_H_
