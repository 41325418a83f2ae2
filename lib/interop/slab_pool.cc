#include "lib/interop/slab_pool.h"

#include <exception>
#include <mutex>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "packalloc/buffer.h"

namespace packalloc::internal {

// At the beginning of its own memory.
struct SlabPool::Slab {
  SlabHead head;
  std::size_t block_class;
  // Under the pool's lock, and on a cache line of their own: the owner is read at every release.
  alignas(64) BlockList free;
  std::size_t used_bytes;  // from the slab's beginning; what lies behind has never been a block
  std::uint32_t blocks;    // that have been cut
  bool usable;             // in its class's list
  Slab* next;
  Slab* previous;
  AnyBuf memory;

  bool HasBlock() const { return free.head != nullptr || used_bytes + kBlockBytes[block_class] <= kSlabBytes; }
  bool Unused() const { return free.count == blocks; }
  void* Cut() {
    if (free.head != nullptr) return free.Pop();
    void* block = reinterpret_cast<std::byte*>(this) + used_bytes;
    used_bytes += kBlockBytes[block_class];
    ++blocks;
    return block;
  }
};

SlabPool::SlabPool(void* owner, PackedAllocator memory, const BufferSpec& spec)
    : owner_(owner), memory_(std::move(memory)), slab_spec_(WithAlignment(spec, kSlabBytes)) {}

absl::StatusOr<SlabPool::Slab*> SlabPool::NewSlab(std::size_t block_class) {
  absl::StatusOr<AnyBuf> buf = memory_.alloc(kSlabBytes, slab_spec_);
  if (!buf.ok()) return buf.status();
  absl::Status problem;
  try {
    const absl::StatusOr<std::byte*> begin = memory_.host_ptr(*buf);
    problem = begin.status();
    if (problem.ok() && reinterpret_cast<std::uintptr_t>(*begin) % kSlabBytes != 0) {
      problem = absl::InternalError(absl::StrCat(memory_.name(), " gave memory that is not aligned to the ", kSlabBytes,
                                                 " bytes it was asked for"));
    }
    if (problem.ok()) {
      return new (*begin) Slab{.head = {owner_},
                               .block_class = block_class,
                               .free = {},
                               .used_bytes = sizeof(Slab),
                               .blocks = 0,
                               .usable = false,
                               .next = nullptr,
                               .previous = nullptr,
                               .memory = *std::move(buf)};
    }
  } catch (...) {
    Release(*buf, kSlabBytes, slab_spec_).IgnoreError();  // counted
    throw;
  }
  Release(*buf, kSlabBytes, slab_spec_).IgnoreError();
  return problem;
}

absl::Status SlabPool::Check() {
  if (!memory_.supports_host_ptr()) {
    return absl::FailedPreconditionError(
        absl::StrCat(memory_.name(), " has no host_ptr; objects need memory that the CPU can reach"));
  }
  absl::StatusOr<Slab*> slab = NewSlab(0);
  if (!slab.ok()) {
    const absl::Status& why = slab.status();
    if (absl::IsInvalidArgument(why)) {
      // Device memory often cannot be aligned to a slab either; that it is the device's says more.
      BufferSpec unaligned = slab_spec_;
      unaligned.alignment = 0;
      const Buffer probe(memory_, kSlabBytes, unaligned);
      if (probe.Allocate().ok() && !probe.host_ptr().ok()) {
        return absl::FailedPreconditionError(absl::StrCat("a slab of TVM-FFI's objects: the memory of ", memory_.name(),
                                                          " is not the host's: ", why.message()));
      }
    }
    return {why.code(), absl::StrCat("a slab of TVM-FFI's objects: ", why.message())};
  }
  const AnyBuf memory = std::move((*slab)->memory);
  (*slab)->~Slab();
  return Release(memory, kSlabBytes, slab_spec_);
}

void SlabPool::LinkLocked(Class& of, Slab* slab) {
  slab->usable = true;
  slab->previous = nullptr;
  slab->next = of.usable;
  if (slab->next != nullptr) slab->next->previous = slab;
  of.usable = slab;
}

void SlabPool::UnlinkLocked(Class& of, Slab* slab) {
  slab->usable = false;
  (slab->previous != nullptr ? slab->previous->next : of.usable) = slab->next;
  if (slab->next != nullptr) slab->next->previous = slab->previous;
}

BlockList SlabPool::TakeLocked(std::size_t block_class, std::uint32_t count) {
  Class& of = classes_[block_class];
  BlockList taken;
  while (taken.count < count && of.usable != nullptr) {
    Slab* const slab = of.usable;
    if (slab->Unused()) --of.unused;
    while (taken.count < count && slab->HasBlock()) taken.Push(slab->Cut());
    if (!slab->HasBlock()) UnlinkLocked(of, slab);
  }
  return taken;
}

BlockList SlabPool::Take(std::size_t block_class, std::uint32_t count) {
  const std::lock_guard lock(lock_);
  return TakeLocked(block_class, count);
}

absl::StatusOr<BlockList> SlabPool::Grow(std::size_t block_class, std::uint32_t count) {
  absl::StatusOr<Slab*> slab = NewSlab(block_class);
  if (!slab.ok()) return slab.status();
  slabs_.fetch_add(1, std::memory_order_relaxed);
  const std::lock_guard lock(lock_);
  LinkLocked(classes_[block_class], *slab);
  ++classes_[block_class].unused;
  return TakeLocked(block_class, count);  // of this slab: it is the first
}

void SlabPool::Give(std::size_t block_class, BlockList blocks, bool may_release) noexcept {
  Slab* released = nullptr;
  {
    const std::lock_guard lock(lock_);
    Class& of = classes_[block_class];
    while (FreeBlock* block = blocks.Pop()) {
      auto* const slab = reinterpret_cast<Slab*>(const_cast<SlabHead*>(SlabOf(block)));
      slab->free.Push(block);
      if (!slab->usable) LinkLocked(of, slab);
      if (!slab->Unused()) continue;
      if (may_release && of.unused >= 1) {
        UnlinkLocked(of, slab);
        slab->next = std::exchange(released, slab);
      } else {
        ++of.unused;
      }
    }
  }
  ReleaseSlabs(released).IgnoreError();  // counted
}

absl::Status SlabPool::Trim() noexcept {
  Slab* released = nullptr;
  {
    const std::lock_guard lock(lock_);
    for (Class& of : classes_) {
      for (Slab* slab = of.usable; slab != nullptr && of.unused > 0;) {
        Slab* const next = slab->next;
        if (slab->Unused()) {
          UnlinkLocked(of, slab);
          --of.unused;
          slab->next = std::exchange(released, slab);
        }
        slab = next;
      }
    }
  }
  return ReleaseSlabs(released);
}

absl::Status SlabPool::ReleaseSlabs(Slab* first) noexcept {
  absl::Status all;
  while (first != nullptr) {
    Slab* const slab = std::exchange(first, first->next);
    const AnyBuf memory = std::move(slab->memory);
    slab->~Slab();
    slabs_.fetch_sub(1, std::memory_order_relaxed);
    all.Update(Release(memory, kSlabBytes, slab_spec_));
  }
  return all;
}

absl::Status SlabPool::Release(const AnyBuf& buf, std::size_t nbytes, const BufferSpec& spec) noexcept {
  absl::Status freed;
  try {
    freed = memory_.free(buf, nbytes, spec);
  } catch (const std::exception& e) {
    freed = absl::UnknownError(e.what());
  } catch (...) {
    freed = absl::UnknownError("free threw something that is no std::exception");
  }
  if (!freed.ok()) failed_releases_.fetch_add(1, std::memory_order_relaxed);
  return freed;
}

}  // namespace packalloc::internal
