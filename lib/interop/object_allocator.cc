#include "lib/interop/object_allocator.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/checked_math.h"

namespace packalloc::internal {

// The free lists and counts of one thread. Never deleted: when the thread ends, the next one takes it over.
struct alignas(64) ObjectHeap {
  explicit ObjectHeap(ObjectAllocator* of) : owner(of) {}

  ObjectAllocator* const owner;
  std::array<BlockList, kBlockClasses> free;
  TypeCounts counts;
  ObjectHeap* next_of_owner = nullptr;   // among all
  ObjectHeap* next_of_thread = nullptr;  // among those of its thread, or among the idle ones
};

namespace {

enum class Origin : std::uint16_t { kSlab, kSeparate };

// Before every body. delete_space gets nothing but the body, so what it needs to know is here, at a fixed distance.
struct Prefix {
  std::int32_t type_index;
  std::uint16_t block_class;
  Origin origin;
  tvm_ffi_abi::ObjectAllocHeader header;
};
static_assert(sizeof(Prefix) == 16 && alignof(std::max_align_t) == 16, "a block is as aligned as its body");

constexpr std::size_t kMostBytes = std::numeric_limits<std::ptrdiff_t>::max();
constexpr std::size_t kLargestSmallBody = kLargestBlock - sizeof(Prefix);

// Before the Prefix of an object with an allocation of its own.
struct alignas(16) SeparateBlock {
  ObjectAllocator* owner;
  std::byte* begin;
  std::size_t nbytes;
  std::size_t alignment;
  bool from_malloc;
  AnyBuf buf;  // where not from_malloc
};

Prefix* PrefixOf(void* body) { return static_cast<Prefix*>(body) - 1; }
SeparateBlock* SeparateOf(Prefix* prefix) { return reinterpret_cast<SeparateBlock*>(prefix) - 1; }

constinit thread_local ObjectHeap* current_heap = nullptr;
constinit thread_local bool thread_ended = false;

// This thread is in the PackedAllocator, or in the library to raise an error, and both may come back for an object:
// what is here already serves it, then malloc.
constinit thread_local int calling_out = 0;
struct CallingOut {
  CallingOut() { ++calling_out; }
  ~CallingOut() { --calling_out; }
  CallingOut(const CallingOut&) = delete;
  CallingOut& operator=(const CallingOut&) = delete;
};

}  // namespace

struct ThreadHeaps {
  ObjectHeap* first = nullptr;
  ThreadHeaps() = default;
  ThreadHeaps(const ThreadHeaps&) = delete;
  ThreadHeaps& operator=(const ThreadHeaps&) = delete;
  ~ThreadHeaps() {
    thread_ended = true;
    current_heap = nullptr;
    while (first != nullptr) {
      ObjectHeap* const heap = std::exchange(first, first->next_of_thread);
      heap->owner->RetireHeap(heap);
    }
  }
};

namespace {
thread_local ThreadHeaps thread_heaps;
}  // namespace

absl::StatusOr<ObjectAllocator*> ObjectAllocator::Make(const PackedAllocator& memory,
                                                       const TvmFfiObjectOptions& options, Raise raise) {
  if (!memory) return absl::InvalidArgumentError("objects of TVM-FFI were to come from an empty PackedAllocator");
  if (options.spec.alignment != 0 || options.spec.zero || options.spec.external_ptr) {
    return absl::InvalidArgumentError(absl::StrCat("the memory of TVM-FFI's objects was asked for as ",
                                                   ToString(options.spec),
                                                   "; alignment, zero and external_ptr must be unset"));
  }
  std::unique_ptr<ObjectAllocator, void (*)(ObjectAllocator*)> made(new ObjectAllocator(memory, options, raise),
                                                                    [](ObjectAllocator* unused) { delete unused; });
  if (absl::Status usable = made->pool_.Check(); !usable.ok()) return usable;
  BeginForkGuard(made.get(), ForkRank::kCache);
  return made.release();
}

ObjectAllocator::ObjectAllocator(const PackedAllocator& memory, const TvmFfiObjectOptions& options, Raise raise)
    : options_(options), raise_(raise), entry_{&AllocateCallback, this}, pool_(this, memory, options.spec) {}

// ---- a thread's heap ----

inline ObjectHeap* ObjectAllocator::HeapOfThread() {
  ObjectHeap* const heap = current_heap;
  if (heap != nullptr && heap->owner == this) [[likely]]
    return heap;
  return FindHeap();
}

// noinline, here and below: the usual way is to save no registers for it.
[[gnu::noinline]] ObjectHeap* ObjectAllocator::FindHeap() {
  if (thread_ended) return nullptr;
  ObjectHeap* heap = thread_heaps.first;
  while (heap != nullptr && heap->owner != this) heap = heap->next_of_thread;
  if (heap == nullptr) {
    heap = AcquireHeap();
    if (heap == nullptr) return nullptr;
    heap->next_of_thread = std::exchange(thread_heaps.first, heap);
  }
  return current_heap = heap;
}

ObjectHeap* ObjectAllocator::AcquireHeap() {
  {
    const std::lock_guard lock(lock_);
    if (idle_heaps_ != nullptr) return std::exchange(idle_heaps_, idle_heaps_->next_of_thread);
  }
  auto* const heap = new (std::nothrow) ObjectHeap(this);
  if (heap == nullptr) return nullptr;
  heap->next_of_owner = heaps_.load(std::memory_order_relaxed);
  while (!heaps_.compare_exchange_weak(heap->next_of_owner, heap, std::memory_order_release)) {
  }
  return heap;
}

void ObjectAllocator::EmptyHeap(ObjectHeap& heap) noexcept {
  const CallingOut scope;
  for (std::size_t i = 0; i < kBlockClasses; ++i) {
    if (heap.free[i].head != nullptr) pool_.Give(i, std::exchange(heap.free[i], {}), true);
  }
}

void ObjectAllocator::RetireHeap(ObjectHeap* heap) noexcept {
  EmptyHeap(*heap);
  const std::lock_guard lock(lock_);
  heap->next_of_thread = std::exchange(idle_heaps_, heap);
}

void ObjectAllocator::CountMade(ObjectHeap* heap, std::int32_t type_index, std::size_t bytes) {
  if (heap != nullptr) return heap->counts.Made(type_index, bytes);
  const std::lock_guard lock(lock_);
  late_.Made(type_index, bytes);
}

void ObjectAllocator::CountDropped(ObjectHeap* heap, std::int32_t type_index, std::size_t bytes) {
  if (heap != nullptr) return heap->counts.Dropped(type_index, bytes);
  const std::lock_guard lock(lock_);
  late_.Dropped(type_index, bytes);
}

// ---- making objects ----

void* ObjectAllocator::AllocateCallback(std::size_t size, std::size_t alignment, std::int32_t type_index,
                                        void* context) {
  return static_cast<ObjectAllocator*>(context)->Allocate(size, alignment, type_index);
}

void* ObjectAllocator::Allocate(std::size_t size, std::size_t alignment, std::int32_t type_index) {
  ObjectHeap* const heap = HeapOfThread();
  // No bit twice, and none above 16: 0 and the powers of two up to alignof(std::max_align_t).
  const bool small =
      size <= kLargestSmallBody && alignment <= alignof(std::max_align_t) && (alignment & (alignment - 1)) == 0;
  if (small && heap != nullptr) [[likely]] {
    const std::size_t block_class = BlockClassOf(sizeof(Prefix) + size);
    if (heap->free[block_class].head == nullptr) [[unlikely]]
      Refill(*heap, block_class);
    if (FreeBlock* const block = heap->free[block_class].Pop()) [[likely]] {
      heap->counts.Made(type_index, kBlockBytes[block_class]);
      auto* const prefix = ::new (block)
          Prefix{type_index, static_cast<std::uint16_t>(block_class), Origin::kSlab, {&ObjectAllocator::DeleteSpace}};
      return prefix + 1;
    }
  }
  return AllocateSeparately(heap, size, alignment, type_index);
}

[[gnu::noinline]] void ObjectAllocator::Refill(ObjectHeap& heap, std::size_t block_class) {
  const std::uint32_t count = kBlockBatch[block_class];
  BlockList blocks = pool_.Take(block_class, count);
  if (blocks.head == nullptr && calling_out == 0) {
    const CallingOut scope;
    try {
      absl::StatusOr<BlockList> grown = pool_.Grow(block_class, count);
      if (grown.ok()) blocks = *grown;
    } catch (...) {
      // The caller may be in C: whatever the allocator throws, there is no memory.
    }
  }
  BlockList& free = heap.free[block_class];  // to which the allocator may have dropped objects meanwhile
  while (FreeBlock* block = blocks.Pop()) free.Push(block);
}

std::byte* ObjectAllocator::FromMemory(std::size_t nbytes, std::size_t alignment, AnyBuf& buf) {
  const CallingOut scope;
  const BufferSpec spec = WithAlignment(options_.spec, alignment);
  try {
    absl::StatusOr<AnyBuf> given = pool_.memory().alloc(nbytes, spec);
    if (!given.ok()) return nullptr;
    buf = *std::move(given);
    const absl::StatusOr<std::byte*> begin = pool_.memory().host_ptr(buf);
    if (begin.ok() && reinterpret_cast<std::uintptr_t>(*begin) % alignment == 0) return *begin;
  } catch (...) {
    // As in Refill.
  }
  if (!buf.empty()) pool_.Release(std::exchange(buf, {}), nbytes, spec).IgnoreError();  // counted
  return nullptr;
}

[[gnu::noinline]] void* ObjectAllocator::AllocateSeparately(ObjectHeap* heap, std::size_t size, std::size_t alignment,
                                                            std::int32_t type_index) {
  if ((alignment & (alignment - 1)) != 0 || alignment > kMaxAlignment) {
    return Fail("ValueError", "the alignment is no power of two up to 1 GiB", size, alignment, type_index);
  }
  const bool slabs_failed = heap != nullptr && size <= kLargestSmallBody && alignment <= alignof(std::max_align_t);
  alignment = std::max(alignment, alignof(std::max_align_t));
  const std::size_t offset = *RoundUp(sizeof(SeparateBlock) + sizeof(Prefix), alignment);
  const std::optional<std::size_t> nbytes = CheckedAdd(offset, size);
  if (!nbytes || *nbytes > kMostBytes)
    return Fail("MemoryError", "more than there are addresses", size, alignment, type_index);

  AnyBuf buf;
  bool from_malloc = false;
  std::byte* begin = nullptr;
  if (!slabs_failed && calling_out == 0) begin = FromMemory(*nbytes, alignment, buf);
  if (begin == nullptr && (options_.malloc_fallback || calling_out != 0)) {
    void* block = nullptr;
    if (posix_memalign(&block, alignment, *nbytes) == 0) {
      begin = static_cast<std::byte*>(block);
      from_malloc = true;
      malloc_allocations_.fetch_add(1, std::memory_order_relaxed);
    }
  }
  if (begin == nullptr) {
    const char* const why = options_.malloc_fallback ? "no memory, nor from malloc" : "no memory";
    return Fail("MemoryError", why, size, alignment, type_index);
  }

  std::byte* const body = begin + offset;
  auto* const prefix = ::new (PrefixOf(body)) Prefix{type_index, 0, Origin::kSeparate, {&ObjectAllocator::DeleteSpace}};
  ::new (SeparateOf(prefix)) SeparateBlock{this, begin, *nbytes, alignment, from_malloc, std::move(buf)};
  CountMade(heap, type_index, *nbytes);
  return body;
}

void* ObjectAllocator::Fail(const char* kind, const char* why, std::size_t size, std::size_t alignment,
                            std::int32_t type_index) {
  failed_allocations_.fetch_add(1, std::memory_order_relaxed);
  if (options_.out_of_memory == TvmFfiOutOfMemory::kThrowBadAlloc) throw std::bad_alloc();
  // Within an error that is being raised there is none to raise; and raising takes memory, which must be there.
  void* const reserve = calling_out == 0 ? std::malloc(kLargestBlock) : nullptr;
  if (reserve == nullptr) return nullptr;
  std::array<char, 256> message{};
  std::snprintf(message.data(), message.size(),
                "packalloc: an object of type %d, %zu bytes aligned to %zu, cannot be had from %s: %s", type_index,
                size, alignment, pool_.memory().name().c_str(), why);
  std::free(reserve);
  const CallingOut scope;
  try {
    raise_(kind, message.data());
  } catch (...) {
    // Without memory even for that, NULL is all there is to say.
  }
  return nullptr;
}

// ---- dropping them ----

void ObjectAllocator::DeleteSpace(void* body) noexcept {
  Prefix* const prefix = PrefixOf(body);
  if (prefix->origin != Origin::kSlab) [[unlikely]]
    return DropSeparate(body);
  auto* const owner = static_cast<ObjectAllocator*>(SlabPool::OwnerOf(prefix));
  owner->DropSmall(prefix, prefix->block_class, prefix->type_index);
}

inline void ObjectAllocator::DropSmall(void* block, std::size_t block_class, std::int32_t type_index) noexcept {
  ObjectHeap* const heap = HeapOfThread();
  if (heap == nullptr) [[unlikely]] {
    CountDropped(nullptr, type_index, kBlockBytes[block_class]);
    BlockList one;
    one.Push(block);
    return GiveBack(block_class, one);
  }
  heap->counts.Dropped(type_index, kBlockBytes[block_class]);
  BlockList& free = heap->free[block_class];
  free.Push(block);
  if (free.count > 2 * kBlockBatch[block_class]) [[unlikely]]
    GiveBack(block_class, free.Split(kBlockBatch[block_class]));
}

[[gnu::noinline]] void ObjectAllocator::GiveBack(std::size_t block_class, BlockList blocks) noexcept {
  const bool may_release = calling_out == 0;
  const CallingOut scope;
  pool_.Give(block_class, blocks, may_release);
}

[[gnu::noinline]] void ObjectAllocator::DropSeparate(void* body) noexcept {
  Prefix* const prefix = PrefixOf(body);
  SeparateBlock* const block = SeparateOf(prefix);
  ObjectAllocator* const owner = block->owner;
  owner->CountDropped(owner->HeapOfThread(), prefix->type_index, block->nbytes);
  std::byte* const begin = block->begin;
  const std::size_t nbytes = block->nbytes;
  const BufferSpec spec = WithAlignment(owner->options_.spec, block->alignment);
  const bool from_malloc = block->from_malloc;
  const AnyBuf buf = std::move(block->buf);
  block->~SeparateBlock();
  if (from_malloc) return std::free(begin);
  const CallingOut scope;
  owner->pool_.Release(buf, nbytes, spec).IgnoreError();  // counted
}

// ---- looking at it ----

absl::Status ObjectAllocator::Trim() noexcept {
  if (ObjectHeap* const heap = HeapOfThread()) EmptyHeap(*heap);
  const CallingOut scope;
  return pool_.Trim();
}

std::uint64_t ObjectAllocator::made_by_this_thread() {
  std::uint64_t sum = 0;
  if (const ObjectHeap* const heap = HeapOfThread()) {
    heap->counts.ForEach([&](std::int32_t, std::uint64_t made, std::uint64_t, std::uint64_t) { sum += made; });
  }
  return sum;
}

TvmFfiObjectStats ObjectAllocator::stats() const {
  struct Sums {
    std::uint64_t made = 0;
    std::uint64_t dropped = 0;
    std::uint64_t live_bytes = 0;
  };
  std::map<std::int32_t, Sums> by_type;
  const auto add = [&](std::int32_t type_index, std::uint64_t made, std::uint64_t dropped, std::uint64_t live_bytes) {
    Sums& sums = by_type[type_index];
    sums.made += made;
    sums.dropped += dropped;
    sums.live_bytes += live_bytes;
  };
  for (const ObjectHeap* heap = heaps_.load(std::memory_order_acquire); heap != nullptr; heap = heap->next_of_owner) {
    heap->counts.ForEach(add);
  }
  late_.ForEach(add);
  TvmFfiObjectStats stats;
  for (const auto& [type_index, sums] : by_type) {
    // A drop may be seen before what it drops.
    const std::uint64_t live = sums.made > sums.dropped ? sums.made - sums.dropped : 0;
    const std::uint64_t live_bytes = live == 0 || static_cast<std::int64_t>(sums.live_bytes) < 0 ? 0 : sums.live_bytes;
    stats.types.push_back({type_index, sums.made, live, live_bytes});
    stats.allocations += sums.made;
    stats.live += live;
    stats.live_bytes += live_bytes;
  }
  stats.malloc_allocations = malloc_allocations_.load(std::memory_order_relaxed);
  stats.failed_allocations = failed_allocations_.load(std::memory_order_relaxed);
  stats.failed_releases = pool_.failed_releases();
  stats.slabs = pool_.slabs();
  return stats;
}

void ObjectAllocator::BeforeFork() {
  pool_.Lock();
  lock_.lock();
}
void ObjectAllocator::AfterFork(bool /*in_child*/) {
  lock_.unlock();
  pool_.Unlock();
}

}  // namespace packalloc::internal
