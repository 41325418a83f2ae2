// The cache behind the Lru layer.
//
// Shards belong to the cache; a thread works in one of them, and two threads of the first sixteen never in the same.
// The hot path takes the home shard's lock and touches nothing else. What must hold across shards is kept by bounds
// that are handed out to them: a shard whose cached bytes stay within its own [floor, ceiling] cannot break a limit or
// a peak of the whole, so only leaving them takes all locks (AllLocked), which looks at the whole and hands out anew:
//   the ceilings sum to at most max_bytes, so the limit is strict;
//   in use = held - cached, and the floors sum to held - peak in use, so no peak is missed.
#ifndef PACKALLOC_LIB_LAYERS_LRU_CACHE_H_
#define PACKALLOC_LIB_LAYERS_LRU_CACHE_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/fork_guard.h"
#include "lib/layers/buffer_table.h"
#include "lib/layers/live_set.h"
#include "lib/layers/reclaim.h"
#include "lib/layers/shard_lock.h"
#include "lib/layers/size_class.h"
#include "lib/thread_number.h"
#include "packalloc/layers/lru.h"

namespace packalloc {

class LruCache : public LruControl, public ReclaimGroup::Member, private ForkGuarded {
 public:
  // Over `record`, keeping nothing where LRU=0 is in the environment. The options are valid.
  static std::shared_ptr<LruCache> Make(AnyRecord record, const LruOptions& options);
  // `record` with a new cache between its alloc and free and those of the result. `check`: LruOptions::check_frees.
  static AnyRecord Over(AnyRecord record, const LruOptions& options, bool check);
  ~LruCache() override;
  LruCache(const LruCache&) = delete;
  LruCache& operator=(const LruCache&) = delete;

  absl::StatusOr<AnyBuf> Alloc(std::size_t nbytes, const BufferSpec& spec);
  absl::Status Free(const AnyBuf& buf, std::size_t nbytes, const BufferSpec& spec);
  // The hot path of the two alone, for handles that are a pointer: null and false where it is not enough. TryFree has
  // done with the cache when others can see the buffer there: where they release the two, it is safe.
  template <typename T>
  T* TryAlloc(const BufferKey& key);
  bool TryFree(const AnyBuf& buf, const BufferKey& key);
  // What is to be done then; they do all that Alloc and Free do.
  absl::StatusOr<AnyBuf> AllocUncommon(std::size_t nbytes, const BufferSpec& spec);
  absl::Status FreeUncommon(const AnyBuf& buf, std::size_t nbytes, const BufferSpec& spec);
  // TryFree is false from now on.
  void EndTryFree();
  bool idle() const;              // nothing is in use
  void ReleaseCached() noexcept;  // all of it; failures are counted only
  // Alloc and Free, with every buffer in use remembered (LruOptions::check_frees).
  absl::StatusOr<AnyBuf> CheckedAlloc(std::size_t nbytes, const BufferSpec& spec);
  absl::Status CheckedFree(const AnyBuf& buf, std::size_t nbytes, const BufferSpec& spec);

  LruStats stats() const override;
  absl::Status Trim(std::size_t keep_bytes) override;
  absl::Status Clear() override;
  std::size_t Reclaim(std::size_t nbytes) noexcept override;

 private:
  static constexpr std::size_t kShards = 16;
  static constexpr std::uint64_t kClockStep = 256;  // uses between two writes of the shared clock by one shard

  struct alignas(128) Shard {
    ShardLock lock;
    bool used = false;  // guarded by mutex_ as well
    std::int64_t cached_bytes = 0;
    std::int64_t floor = 0;  // see above
    std::int64_t ceiling = 0;
    std::uint64_t clock = 0;  // the stamp of the last use
    std::uint64_t hits = 0;
    BufferTable table{EvictionPolicy::kLru};
  };
  class AllLocked;
  struct Victims;
  struct Released;

  LruCache(AnyRecord inner, const LruOptions& options, bool keep);
  Shard& Home();
  std::uint64_t Tick(Shard& shard);
  static BufferTable::Slot* FindHit(Shard& home, const BufferKey& key);
  static const AnyBuf& TakeHit(Shard& home, BufferTable::Slot& slot, const BufferKey& key);
  bool KeepAtHome(Shard& home, const AnyBuf& buf, const BufferKey& key);
  bool PassesThrough(const BufferSpec& spec) const {
    return static_cast<int>(spec.nolru) + static_cast<int>(spec.zero) +
               static_cast<int>(spec.external_ptr.has_value()) !=
           0;  // one branch
  }

  absl::StatusOr<AnyBuf> AllocSlow(const BufferKey& key, const BufferSpec& spec);
  absl::StatusOr<AnyBuf> AllocInner(std::size_t nbytes, const BufferSpec& spec, const BufferKey* key);
  absl::StatusOr<AnyBuf> AllocAfterReclaim(std::size_t nbytes, const BufferSpec& spec, const BufferKey* key,
                                           std::uint64_t seen, absl::Status exhausted);
  absl::Status FreeSlow(const AnyBuf& buf, const BufferKey& key, const BufferSpec& spec);
  absl::Status FreeInner(const AnyBuf& buf, std::size_t nbytes, const BufferSpec& spec, bool eviction);

  // Releases buffers in the policy's order, some at a time, while more(released so far, cached bytes) is true.
  template <typename More>
  Released ReleaseWhile(More more, bool flush);
  void Release(Victims& victims, Released& released) noexcept;
  absl::Status FreeQuietly(const AnyBuf& buf, std::size_t nbytes, const BufferSpec& spec) noexcept;

  void BeforeFork() override;
  void AfterFork(bool in_child) override;

  const AnyRecord inner_;
  const std::size_t max_alloc_bytes_;
  const std::size_t max_kept_bytes_;  // the same, or 0 where nothing is kept
  const SizeClasses classes_;
  const std::int64_t max_bytes_;
  const bool keep_;
  const std::shared_ptr<ReclaimGroup> group_;
  LiveSet live_;  // of the Checked calls

  std::array<Shard, kShards> shards_;
  // The clocks of the shards, as of some hundred uses ago: so that one that was idle does not fall behind.
  alignas(128) std::atomic<std::uint64_t> shared_clock_{0};
  std::atomic<std::uint64_t> failed_frees_{0};

  mutable std::mutex mutex_;  // taken before any shard's lock by whoever takes more than the home shard's
  std::int64_t held_bytes_ = 0;
  std::int64_t held_buffers_ = 0;
  std::int64_t pinned_held_bytes_ = 0;
  std::int64_t peak_in_use_ = 0;
  std::int64_t peak_held_ = 0;
  double rank_ = 0;  // the highest that was evicted
  std::uint64_t misses_ = 0;
  std::uint64_t evictions_ = 0;
  std::uint64_t flushes_ = 0;
  bool frees_are_slow_ = false;
};

// Numbers are not reused, so that a thread does not get the shard of one that is still there before sixteen have come.
inline LruCache::Shard& LruCache::Home() { return shards_[ThreadNumber() % kShards]; }

inline std::uint64_t LruCache::Tick(Shard& shard) {
  const std::uint64_t shared = shared_clock_.load(std::memory_order_relaxed);
  shard.clock = std::max(shard.clock, shared) + 1;
  if (shard.clock - shared >= kClockStep) [[unlikely]]
    shared_clock_.store(shard.clock, std::memory_order_relaxed);
  return shard.clock;
}

// Of the shard `home`, locked: the slot that can give a buffer of `key` without a look at the other shards, or null.
inline BufferTable::Slot* LruCache::FindHit(Shard& home, const BufferKey& key) {
  BufferTable::Slot* slot = home.table.Find(key);
  const bool hit = slot != nullptr && !slot->empty() &&
                   home.cached_bytes - static_cast<std::int64_t>(key.nbytes) >= home.floor &&
                   slot->newest().copies_as_bytes();
  return hit ? slot : nullptr;
}

// Readable until the lock is released.
inline const AnyBuf& LruCache::TakeHit(Shard& home, BufferTable::Slot& slot, const BufferKey& key) {
  home.cached_bytes -= static_cast<std::int64_t>(key.nbytes);
  ++home.hits;
  return home.table.DropNewestBytes(slot, home.clock);
}

// Keeps a buffer that copies_as_bytes in the shard `home`, locked, where that takes no look at the others.
inline bool LruCache::KeepAtHome(Shard& home, const AnyBuf& buf, const BufferKey& key) {
  const std::int64_t sum = home.cached_bytes + static_cast<std::int64_t>(key.nbytes);
  BufferTable::Slot* slot = home.table.Find(key);
  if (slot == nullptr || !slot->is_ready() || sum > home.ceiling) [[unlikely]]
    return false;
  home.table.PushBytes(*slot, buf, Tick(home));
  home.cached_bytes = sum;
  return true;
}

template <typename T>
inline T* LruCache::TryAlloc(const BufferKey& key) {
  Shard& home = Home();
  const std::unique_lock lock(home.lock, std::try_to_lock);
  BufferTable::Slot* slot = lock ? FindHit(home, key) : nullptr;
  return slot != nullptr ? *TakeHit(home, *slot, key).get<T*>() : nullptr;
}

[[gnu::always_inline]] inline bool LruCache::TryFree(const AnyBuf& buf, const BufferKey& key) {
  Shard& home = Home();
  const std::unique_lock lock(home.lock, std::try_to_lock);
  return lock && KeepAtHome(home, buf, key);
}

}  // namespace packalloc

#endif  // PACKALLOC_LIB_LAYERS_LRU_CACHE_H_
