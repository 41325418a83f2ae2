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
#include "packalloc/layers/lru.h"

namespace packalloc {

class LruCache : public LruControl, public ReclaimGroup::Member, private ForkGuarded {
 public:
  // `record` with a new cache between its alloc and free and those of the result. `keep` false: it keeps nothing
  // (LRU=0). `check`: LruOptions::check_frees. The options are valid.
  static AnyRecord Over(AnyRecord record, const LruOptions& options, bool keep, bool check);
  ~LruCache() override;
  LruCache(const LruCache&) = delete;
  LruCache& operator=(const LruCache&) = delete;

  absl::StatusOr<AnyBuf> Alloc(std::size_t nbytes, const BufferSpec& spec);
  absl::Status Free(const AnyBuf& buf, std::size_t nbytes, const BufferSpec& spec);
  // The same, with every buffer in use remembered (LruOptions::check_frees).
  absl::StatusOr<AnyBuf> CheckedAlloc(std::size_t nbytes, const BufferSpec& spec);
  absl::Status CheckedFree(const AnyBuf& buf, std::size_t nbytes, const BufferSpec& spec);

  LruStats stats() const override;
  absl::Status Trim(std::size_t keep_bytes) override;
  absl::Status Clear() override;
  std::size_t Reclaim(std::size_t nbytes) noexcept override;

 private:
  static constexpr std::size_t kShards = 16;

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
  bool PassesThrough(const BufferSpec& spec) const {
    return static_cast<int>(spec.nolru) + static_cast<int>(spec.zero) +
               static_cast<int>(spec.external_ptr.has_value()) !=
           0;  // one branch
  }

  absl::StatusOr<AnyBuf> AllocUncommon(std::size_t nbytes, const BufferSpec& spec);
  absl::StatusOr<AnyBuf> AllocSlow(const BufferKey& key, const BufferSpec& spec);
  absl::StatusOr<AnyBuf> AllocInner(std::size_t nbytes, const BufferSpec& spec, const BufferKey* key);
  absl::StatusOr<AnyBuf> AllocAfterReclaim(std::size_t nbytes, const BufferSpec& spec, const BufferKey* key,
                                           std::uint64_t seen, absl::Status exhausted);
  absl::Status FreeSlow(const AnyBuf& buf, std::size_t nbytes, const BufferKey& key, const BufferSpec& spec);
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
};

}  // namespace packalloc

#endif  // PACKALLOC_LIB_LAYERS_LRU_CACHE_H_
