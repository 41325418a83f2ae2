#include "packalloc/layers/limited.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/checks.h"
#include "lib/layers/stack_rules.h"
#include "packalloc/layers/lru.h"

namespace packalloc {
namespace {

class Limit : public LimitedControl {
 public:
  Limit(AnyRecord inner, std::size_t max_bytes)
      : inner_(std::move(inner)), max_bytes_(max_bytes), cache_(inner_.controls.Find<LruControl>()) {}

  std::size_t max_bytes() const override { return max_bytes_; }
  std::size_t used_bytes() const override { return used_.load(); }

  absl::StatusOr<AnyBuf> Alloc(std::size_t nbytes, const BufferSpec& spec) {
    if (absl::Status valid = CheckRequest(inner_.traits.name, nbytes, spec); !valid.ok()) return valid;
    if (spec.external_ptr.has_value()) return inner_.alloc(nbytes, spec);
    std::size_t used = used_.load();
    do {
      if (nbytes > max_bytes_ - used) {
        return absl::ResourceExhaustedError(absl::StrCat(inner_.traits.name, ": alloc of ", nbytes, " bytes, but ",
                                                         max_bytes_, " are allowed at a time and ", used,
                                                         " are allocated"));
      }
    } while (!used_.compare_exchange_weak(used, used + nbytes));
    Reservation reservation{*this, nbytes};
    if (cache_ && nbytes != 0) {
      const std::size_t room = max_bytes_ - std::min(max_bytes_, used + nbytes);
      if (cache_->stats().cached_bytes > room) cache_->Trim(room).IgnoreError();
    }
    absl::StatusOr<AnyBuf> buf = inner_.alloc(nbytes, spec);
    if (buf.ok()) reservation.nbytes = 0;
    return buf;
  }

  absl::Status Free(const AnyBuf& buf, std::size_t nbytes, const BufferSpec& spec) {
    absl::Status freed = inner_.free(buf, nbytes, spec);
    if (freed.ok() && !spec.external_ptr.has_value()) Release(nbytes);
    return freed;
  }

  absl::StatusOr<MemoryInfo> Info() const {
    absl::StatusOr<MemoryInfo> info = inner_.memory_info();
    if (!info.ok()) return info;
    info->total_bytes = std::min(info->total_bytes, max_bytes_);
    info->free_bytes = std::min({info->free_bytes, info->total_bytes, max_bytes_ - used_.load()});
    return info;
  }

 private:
  struct Reservation {
    ~Reservation() { limit.Release(nbytes); }
    Limit& limit;
    std::size_t nbytes;
  };

  // Never below 0, also where a caller frees what it was not given.
  void Release(std::size_t nbytes) {
    std::size_t used = used_.load();
    while (!used_.compare_exchange_weak(used, used - std::min(used, nbytes))) {
    }
  }

  const AnyRecord inner_;
  const std::size_t max_bytes_;
  const std::shared_ptr<LruControl> cache_;
  std::atomic<std::size_t> used_{0};
};

}  // namespace

absl::StatusOr<AnyRecord> LimitedLayer(AnyRecord inner, std::size_t max_bytes) {
  AnyRecord layered = inner;
  auto limit = std::make_shared<Limit>(std::move(inner), max_bytes);
  layered.traits.max_alloc_bytes = std::min(layered.traits.max_alloc_bytes, max_bytes);
  layered.alloc = [limit](std::size_t nbytes, const BufferSpec& spec) { return limit->Alloc(nbytes, spec); };
  layered.free = [limit](const AnyBuf& buf, std::size_t nbytes, const BufferSpec& spec) {
    return limit->Free(buf, nbytes, spec);
  };
  if (layered.memory_info) layered.memory_info = [limit] { return limit->Info(); };
  layered.controls.Add<LimitedControl>(std::move(limit));
  MarkLayer(layered, "limited");
  return layered;
}

absl::StatusOr<PackedAllocator> Limited(const PackedAllocator& packed, std::size_t max_bytes) {
  return ApplyLayer(packed, [&](AnyRecord inner) { return LimitedLayer(std::move(inner), max_bytes); });
}

}  // namespace packalloc
