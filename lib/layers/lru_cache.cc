#include "lib/layers/lru_cache.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <limits>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/checks.h"
#include "lib/env.h"

namespace packalloc {
namespace {

constexpr std::size_t kMostBytes = std::numeric_limits<std::ptrdiff_t>::max();

}  // namespace

// All shards in use, and the totals, under lock; on leaving, bounds and clocks are handed out anew.
class LruCache::AllLocked {
 public:
  // `home` is in use from now on. Null: whoever looks has no shard.
  AllLocked(LruCache& cache, Shard* home) : cache_(cache), home_(home), lock_(cache.mutex_) {
    if (home != nullptr) home->used = true;
    for (Shard& shard : cache.shards_) {
      if (!shard.used) continue;
      shard.lock.lock();
      ++used_;
      cached_ += shard.cached_bytes;
      clock_ = std::max(clock_, shard.clock);
    }
  }
  ~AllLocked() {
    HandOut();
    for (Shard& shard : cache_.shards_) {
      if (shard.used) shard.lock.unlock();
    }
  }
  AllLocked(const AllLocked&) = delete;
  AllLocked& operator=(const AllLocked&) = delete;

  std::int64_t cached() const { return cached_; }

  // A buffer of `key`: of the home shard, else of the one that used the key longest ago. (Of any other, two threads
  // that work with the same size would take it from each other for ever.)
  std::optional<AnyBuf> Take(const BufferKey& key) {
    Shard* from = nullptr;
    BufferTable::Slot* found = nullptr;
    for (Shard& shard : cache_.shards_) {
      if (!shard.used) continue;
      BufferTable::Slot* slot = shard.table.Find(key);
      if (slot == nullptr || slot->empty()) continue;
      if (found == nullptr || &shard == home_ || (from != home_ && slot->last_used() < found->last_used())) {
        from = &shard;
        found = slot;
      }
    }
    if (found == nullptr) return std::nullopt;
    std::optional<AnyBuf> taken(from->table.PopNewest(*found, ++clock_));
    from->cached_bytes -= static_cast<std::int64_t>(key.nbytes);
    cached_ -= static_cast<std::int64_t>(key.nbytes);
    ++home_->hits;
    return taken;
  }

  // Keeps `buf` in the home shard. False where there is no memory to note it.
  bool Keep(AnyBuf& buf, const BufferKey& key) {
    try {
      BufferTable::Slot& slot = home_->table.FindOrAdd(key);
      home_->table.Push(slot, std::move(buf), ++clock_);
    } catch (const std::bad_alloc&) {
      return false;
    }
    home_->cached_bytes += static_cast<std::int64_t>(key.nbytes);
    cached_ += static_cast<std::int64_t>(key.nbytes);
    return true;
  }

  // Takes out what goes next. Something is cached.
  BufferTable::Evicted TakeLowest() {
    Shard* lowest = nullptr;
    std::optional<Priority> priority;
    for (Shard& shard : cache_.shards_) {
      if (!shard.used) continue;
      const std::optional<Priority> mine = shard.table.Lowest();
      if (!mine || (priority && !(*mine < *priority))) continue;
      lowest = &shard;
      priority = mine;
    }
    BufferTable::Evicted evicted = lowest->table.PopLowest();
    lowest->cached_bytes -= static_cast<std::int64_t>(evicted.key.nbytes);
    cached_ -= static_cast<std::int64_t>(evicted.key.nbytes);
    rank_ = std::max(rank_, priority->rank);
    AddHeld(evicted.key.nbytes, evicted.key.host(), -1);
    return evicted;
  }

  // A buffer came from the inner record (sign 1) or went back to it (-1).
  void AddHeld(std::size_t nbytes, bool pinned, int sign) {
    const std::int64_t bytes = sign * static_cast<std::int64_t>(nbytes);
    cache_.held_bytes_ += bytes;
    cache_.held_buffers_ += sign;
    if (pinned) cache_.pinned_held_bytes_ += bytes;
  }

 private:
  // What is left up to the limit and up to the peak is split evenly, the rest to the home shard: with one shard in use
  // it has everything, and comes here only when it reaches the limit or a new peak.
  void HandOut() {
    const std::int64_t in_use = cache_.held_bytes_ - cached_;
    cache_.peak_in_use_ = std::max(cache_.peak_in_use_, in_use);
    cache_.peak_held_ = std::max(cache_.peak_held_, cache_.held_bytes_);
    if (used_ == 0) return;
    const std::int64_t below = cache_.peak_in_use_ - in_use;
    const std::int64_t above = cache_.max_bytes_ - cached_;
    for (Shard& shard : cache_.shards_) {
      if (!shard.used) continue;
      const bool rest = &shard == home_;
      shard.floor = shard.cached_bytes - below / used_ - (rest ? below % used_ : 0);
      shard.ceiling = shard.cached_bytes + above / used_ + (rest ? above % used_ : 0);
      if (cache_.frees_are_slow_) shard.ceiling = std::numeric_limits<std::int64_t>::min();
      shard.clock = clock_;
      shard.table.Advance(rank_);
    }
    cache_.rank_ = rank_;
    cache_.shared_clock_.store(clock_, std::memory_order_relaxed);
  }

  LruCache& cache_;
  Shard* const home_;
  std::lock_guard<std::mutex> lock_;
  std::int64_t used_ = 0;
  std::int64_t cached_ = 0;
  std::uint64_t clock_ = 0;
  double rank_ = cache_.rank_;
};

// Buffers on their way back to the inner record: as many as are taken out under one lock.
struct LruCache::Victims {
  std::array<BufferTable::Evicted, 8> evicted;
  std::size_t count = 0;
  bool full() const { return count == evicted.size(); }
};

struct LruCache::Released {
  std::size_t bytes = 0;
  std::size_t buffers = 0;
  std::size_t failed = 0;
  absl::Status first_failure;
};

// In both the home shard comes first, as finding it is a call where the library may be a shared one; then nothing is
// called but, at the end, what does the rest. So there is little in registers that must be saved.
[[gnu::always_inline]] inline absl::StatusOr<AnyBuf> LruCache::Alloc(std::size_t nbytes, const BufferSpec& spec) {
  Shard& home = Home();
  // 0 - 1 wraps: one comparison finds zero and too many.
  if (nbytes - 1 < max_kept_bytes_ && spec.alignment == 0 && !PassesThrough(spec)) [[likely]] {
    const BufferKey key(classes_.Of(nbytes), spec);  // of a class that overflows, 0, there is none
    if (const std::unique_lock lock(home.lock, std::try_to_lock); lock) [[likely]] {
      if (BufferTable::Slot* slot = FindHit(home, key)) [[likely]] {
        // Made where the caller wants it, before the lock is released.
        return absl::StatusOr<AnyBuf>(absl::in_place, TakeHit(home, *slot, key), nbytes);
      }
    }
  }
  return AllocUncommon(nbytes, spec);
}

[[gnu::always_inline]] inline absl::Status LruCache::Free(const AnyBuf& buf, std::size_t nbytes,
                                                          const BufferSpec& spec) {
  Shard& home = Home();
  if (nbytes != 0 && !PassesThrough(spec) && buf.copies_as_bytes()) [[likely]] {
    const BufferKey key(classes_.Of(nbytes), spec);
    const std::unique_lock lock(home.lock, std::try_to_lock);
    if (lock && KeepAtHome(home, buf, key)) [[likely]]
      return absl::OkStatus();
  }
  return FreeUncommon(buf, nbytes, spec);
}

// Here and not in lru.cc, so that Alloc and Free are part of what the record calls.
AnyRecord LruCache::Over(AnyRecord record, const LruOptions& options, bool check) {
  AnyRecord layered = record;
  std::shared_ptr<LruCache> cache = Make(std::move(record), options);
  using Spec = BufferSpec;
  const auto alloc = [](void* self, std::size_t nbytes, const Spec& spec) {
    return static_cast<LruCache*>(self)->Alloc(nbytes, spec);
  };
  const auto free = [](void* self, const AnyBuf& buf, std::size_t nbytes, const Spec& spec) {
    return static_cast<LruCache*>(self)->Free(buf, nbytes, spec);
  };
  const auto checked_alloc = [](void* self, std::size_t nbytes, const Spec& spec) {
    return static_cast<LruCache*>(self)->CheckedAlloc(nbytes, spec);
  };
  const auto checked_free = [](void* self, const AnyBuf& buf, std::size_t nbytes, const Spec& spec) {
    return static_cast<LruCache*>(self)->CheckedFree(buf, nbytes, spec);
  };
  layered.alloc = internal::DirectAlloc{cache, check ? internal::DirectAlloc::Call{checked_alloc} : alloc};
  layered.free = internal::DirectFree{cache, check ? internal::DirectFree::Call{checked_free} : free};
  layered.controls.Add<LruControl>(std::move(cache));
  return layered;
}

std::shared_ptr<LruCache> LruCache::Make(AnyRecord record, const LruOptions& options) {
  std::shared_ptr<LruCache> cache(new LruCache(std::move(record), options, /*keep=*/EnvFlag("LRU", true)));
  cache->group_->Join(cache);
  return cache;
}

LruCache::LruCache(AnyRecord inner, const LruOptions& options, bool keep)
    : inner_(std::move(inner)),
      max_alloc_bytes_(std::min(inner_.traits.max_alloc_bytes, kMostBytes)),
      max_kept_bytes_(keep ? max_alloc_bytes_ : 0),
      classes_(options.max_waste, max_alloc_bytes_),
      max_bytes_(static_cast<std::int64_t>(std::min(options.max_bytes, kMostBytes))),
      keep_(keep),
      group_(ReclaimGroup::Of(inner_.traits.memory_domain)) {
  for (Shard& shard : shards_) shard.table = BufferTable(options.policy);
  BeginForkGuard(this, ForkRank::kCache);
}

LruCache::~LruCache() {
  ReleaseCached();
  EndForkGuard(this);
}

absl::StatusOr<AnyBuf> LruCache::AllocUncommon(std::size_t nbytes, const BufferSpec& spec) {
  if (absl::Status valid = CheckRequest(inner_.traits.name, nbytes, spec); !valid.ok()) return valid;
  if (nbytes > max_alloc_bytes_) {
    return absl::ResourceExhaustedError(absl::StrCat("alloc of ", nbytes, " bytes: the largest single allocation of ",
                                                     inner_.traits.name, " is ", max_alloc_bytes_, " bytes"));
  }
  if (nbytes == 0 || spec.external_ptr.has_value()) return inner_.alloc(nbytes, spec);
  if (!keep_ || PassesThrough(spec)) return AllocInner(nbytes, spec, nullptr);
  const std::size_t class_bytes = classes_.Of(nbytes);
  if (class_bytes == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("alloc of ", nbytes, " bytes: its size class does not fit an address"));
  }
  return AllocSlow(BufferKey(class_bytes, spec), spec);
}

absl::StatusOr<AnyBuf> LruCache::AllocSlow(const BufferKey& key, const BufferSpec& spec) {
  Shard& home = Home();
  {
    const std::lock_guard lock(home.lock);  // which another thread may have had before
    if (BufferTable::Slot* slot = FindHit(home, key)) {
      return absl::StatusOr<AnyBuf>(absl::in_place, TakeHit(home, *slot, key), key.nbytes);
    }
  }
  std::optional<AnyBuf> hit = AllLocked(*this, &home).Take(key);
  if (hit) return *std::move(hit);
  return AllocInner(key.nbytes, spec, &key);
}

// `key` null: what comes is never cached.
absl::StatusOr<AnyBuf> LruCache::AllocInner(std::size_t nbytes, const BufferSpec& spec, const BufferKey* key) {
  const std::uint64_t seen = group_->completed();
  absl::StatusOr<AnyBuf> buf = inner_.alloc(nbytes, spec);
  if (absl::IsResourceExhausted(buf.status())) return AllocAfterReclaim(nbytes, spec, key, seen, buf.status());
  if (!buf.ok()) return buf;
  AllLocked all(*this, &Home());
  all.AddHeld(nbytes, spec.host, 1);
  ++misses_;
  return buf;
}

absl::StatusOr<AnyBuf> LruCache::AllocAfterReclaim(std::size_t nbytes, const BufferSpec& spec, const BufferKey* key,
                                                   std::uint64_t seen, absl::Status exhausted) {
  for (std::size_t goal = nbytes;; goal = std::min(goal, kMostBytes / 2) * 2) {
    const Released released =
        ReleaseWhile([goal](const Released& so_far, std::int64_t) { return so_far.bytes < goal; }, /*flush=*/true);
    if (released.buffers == 0 && group_->Ask(goal, this) == 0 && !group_->WaitForRelease(seen)) break;
    if (key != nullptr) {  // another thread may have freed one meanwhile
      if (std::optional<AnyBuf> hit = AllLocked(*this, &Home()).Take(*key)) return *std::move(hit);
    }
    seen = group_->completed();
    absl::StatusOr<AnyBuf> buf = inner_.alloc(nbytes, spec);
    if (buf.ok()) {
      AllLocked all(*this, &Home());
      all.AddHeld(nbytes, spec.host, 1);
      ++misses_;
      return buf;
    }
    if (!absl::IsResourceExhausted(buf.status())) return buf;
    exhausted = buf.status();
  }
  const LruStats now = stats();
  return absl::ResourceExhaustedError(absl::StrCat(inner_.traits.name, ": alloc of ", nbytes, " bytes failed with ",
                                                   now.in_use_bytes, " bytes in use and ", now.cached_bytes,
                                                   " cached: ", exhausted.message()));
}

absl::Status LruCache::FreeUncommon(const AnyBuf& buf, std::size_t nbytes, const BufferSpec& spec) {
  if (!keep_ || nbytes == 0 || PassesThrough(spec)) return FreeInner(buf, nbytes, spec, /*eviction=*/false);
  return FreeSlow(buf, BufferKey(classes_.Of(nbytes), spec), spec);
}

absl::Status LruCache::FreeSlow(const AnyBuf& buf, const BufferKey& key, const BufferSpec& spec) {
  Shard& home = Home();
  if (buf.copies_as_bytes()) {
    const std::lock_guard lock(home.lock);  // which another thread may have had before
    if (KeepAtHome(home, buf, key)) return absl::OkStatus();
  }
  const auto bytes = static_cast<std::int64_t>(key.nbytes);
  if (key.nbytes > static_cast<std::uint64_t>(max_bytes_)) return FreeInner(buf, key.nbytes, spec, /*eviction=*/true);
  AnyBuf copy(buf, buf.nbytes());
  for (;;) {
    Victims victims;
    bool fits = false;
    bool kept = false;
    {
      AllLocked all(*this, &home);
      while (!(fits = all.cached() + bytes <= max_bytes_) && !victims.full()) {
        victims.evicted[victims.count++] = all.TakeLowest();
        ++evictions_;
      }
      if (fits) kept = all.Keep(copy, key);
      if (victims.count > 0) group_->BeginRelease();
    }
    Released released;
    Release(victims, released);
    if (kept) return absl::OkStatus();
    if (fits) return FreeInner(buf, key.nbytes, spec, /*eviction=*/false);
  }
}

// Gives a buffer that is in use back to the inner record, whose answer is the caller's.
absl::Status LruCache::FreeInner(const AnyBuf& buf, std::size_t nbytes, const BufferSpec& spec, bool eviction) {
  if (nbytes == 0 || spec.external_ptr.has_value()) return inner_.free(buf, nbytes, spec);
  group_->BeginRelease();
  struct End {
    ReclaimGroup& group;
    ~End() { group.EndRelease(); }
  } end{*group_};
  absl::Status freed = inner_.free(buf, nbytes, spec);
  if (!freed.ok()) return freed;
  AllLocked all(*this, &Home());
  all.AddHeld(nbytes, spec.host, -1);
  if (eviction) ++evictions_;
  return freed;
}

absl::Status LruCache::FreeQuietly(const AnyBuf& buf, std::size_t nbytes, const BufferSpec& spec) noexcept {
  try {
    return inner_.free(buf, nbytes, spec);
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat(inner_.traits.name, ": free threw: ", e.what()));
  } catch (...) {
    return absl::InternalError(absl::StrCat(inner_.traits.name, ": free threw"));
  }
}

void LruCache::Release(Victims& victims, Released& released) noexcept {
  if (victims.count == 0) return;
  for (std::size_t i = 0; i < victims.count; ++i) {
    const BufferTable::Evicted& evicted = victims.evicted[i];
    absl::Status freed = FreeQuietly(evicted.buf, evicted.key.nbytes, evicted.key.ToSpec());
    if (freed.ok()) continue;
    failed_frees_.fetch_add(1, std::memory_order_relaxed);
    if (released.failed++ == 0) released.first_failure = std::move(freed);
  }
  group_->EndRelease();
}

template <typename More>
LruCache::Released LruCache::ReleaseWhile(More more, bool flush) {
  Released released;
  for (bool first = true;; first = false) {
    Victims victims;
    {
      AllLocked all(*this, nullptr);
      while (all.cached() > 0 && more(released, all.cached()) && !victims.full()) {
        BufferTable::Evicted& evicted = victims.evicted[victims.count++] = all.TakeLowest();
        released.bytes += evicted.key.nbytes;
        ++released.buffers;
      }
      if (victims.count == 0) return released;
      if (flush && first) ++flushes_;
      group_->BeginRelease();
    }
    if (flush && first && inner_.synchronize) {
      try {
        inner_.synchronize().IgnoreError();  // a device that is lost says so at the next allocation
      } catch (...) {                        // NOLINT(bugprone-empty-catch): side work
      }
    }
    Release(victims, released);
  }
}

void LruCache::ReleaseCached() noexcept {
  ReleaseWhile([](const Released&, std::int64_t) { return true; }, /*flush=*/false);
}

void LruCache::EndTryFree() {
  const AllLocked all(*this, nullptr);
  frees_are_slow_ = true;
}

bool LruCache::idle() const {
  auto& self = const_cast<LruCache&>(*this);  // taking the locks changes nothing that can be seen
  const AllLocked all(self, nullptr);
  return held_bytes_ == all.cached();
}

std::size_t LruCache::Reclaim(std::size_t nbytes) noexcept {
  return ReleaseWhile([nbytes](const Released& so_far, std::int64_t) { return so_far.bytes < nbytes; }, /*flush=*/true)
      .bytes;
}

absl::Status LruCache::Trim(std::size_t keep_bytes) {
  if (inner_.synchronize) {
    try {
      // What forbids waiting (a stream that is captured into a graph) forbids giving back too: all stays cached.
      absl::Status waited = inner_.synchronize();
      if (waited.code() == absl::StatusCode::kFailedPrecondition) return waited;
    } catch (...) {  // NOLINT(bugprone-empty-catch): side work
    }
  }
  const auto keep = static_cast<std::int64_t>(std::min(keep_bytes, kMostBytes));
  const std::size_t most = stats().cached_buffers;  // so that threads that go on freeing do not keep it here for ever
  const Released released =
      ReleaseWhile([=](const Released& so_far, std::int64_t cached) { return cached > keep && so_far.buffers < most; },
                   /*flush=*/false);
  if (released.failed == 0) return absl::OkStatus();
  return absl::Status(released.first_failure.code(), absl::StrCat(released.failed, " of ", released.buffers,
                                                                  " cached buffers could not be released; the first: ",
                                                                  released.first_failure.message()));
}

absl::Status LruCache::Clear() {
  absl::Status trimmed = Trim(0);
  AllLocked all(*this, nullptr);
  for (Shard& shard : shards_) {
    if (shard.used && shard.cached_bytes == 0) shard.table.Clear();
  }
  return trimmed;
}

LruStats LruCache::stats() const {
  auto& self = const_cast<LruCache&>(*this);  // taking the locks changes nothing that can be seen
  const AllLocked all(self, nullptr);
  LruStats s;
  std::int64_t cached_buffers = 0;
  std::int64_t cached_pinned = 0;
  for (const Shard& shard : shards_) {
    s.hits += shard.hits;
    shard.table.ForEachKey([&](const BufferKey& key, std::size_t buffers) {
      cached_buffers += static_cast<std::int64_t>(buffers);
      if (key.host()) cached_pinned += static_cast<std::int64_t>(buffers * key.nbytes);
    });
  }
  s.misses = misses_;
  s.evictions = evictions_;
  s.flushes = flushes_;
  s.failed_frees = failed_frees_.load(std::memory_order_relaxed);
  s.cached_bytes = static_cast<std::size_t>(all.cached());
  s.in_use_bytes = static_cast<std::size_t>(held_bytes_ - all.cached());
  s.cached_buffers = static_cast<std::size_t>(cached_buffers);
  s.in_use_buffers = static_cast<std::size_t>(held_buffers_ - cached_buffers);
  s.pinned_cached_bytes = static_cast<std::size_t>(cached_pinned);
  s.pinned_in_use_bytes = static_cast<std::size_t>(pinned_held_bytes_ - cached_pinned);
  s.peak_in_use_bytes = static_cast<std::size_t>(peak_in_use_);
  s.peak_held_bytes = static_cast<std::size_t>(peak_held_);
  return s;
}

absl::StatusOr<AnyBuf> LruCache::CheckedAlloc(std::size_t nbytes, const BufferSpec& spec) {
  absl::StatusOr<AnyBuf> buf = Alloc(nbytes, spec);
  if (!buf.ok() || nbytes == 0 || spec.external_ptr.has_value()) return buf;
  try {
    live_.Add(inner_.addr(*buf), nbytes, spec);
  } catch (...) {
    Free(*buf, nbytes, spec).IgnoreError();
    throw;
  }
  return buf;
}

absl::Status LruCache::CheckedFree(const AnyBuf& buf, std::size_t nbytes, const BufferSpec& spec) {
  if (spec.external_ptr.has_value()) return Free(buf, nbytes, spec);
  const DeviceAddress at = inner_.addr(buf);
  // An empty buffer. One that is not, but is freed with a size of 0, is in use at its address.
  if (nbytes == 0 && (at == DeviceAddress{} || !live_.Contains(at))) return Free(buf, nbytes, spec);
  absl::StatusOr<DeviceAddress> known = live_.Remove(at, nbytes, spec);
  if (!known.ok()) return known.status();
  try {
    absl::Status freed = Free(buf, nbytes, spec);
    if (!freed.ok()) live_.Add(*known, nbytes, spec);
    return freed;
  } catch (...) {
    live_.Add(*known, nbytes, spec);
    throw;
  }
}

void LruCache::BeforeFork() {
  mutex_.lock();
  for (Shard& shard : shards_) shard.lock.lock();
  live_.Lock();
}

void LruCache::AfterFork(bool) {
  live_.Unlock();
  for (Shard& shard : shards_) shard.lock.unlock();
  mutex_.unlock();
}

}  // namespace packalloc
