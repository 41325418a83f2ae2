#include "packalloc/layers/counted.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "lib/fork_guard.h"
#include "lib/layers/stack_rules.h"

namespace packalloc {
namespace {

class Counter : public CountedControl, private ForkGuarded {
 public:
  Counter(AnyRecord inner, const CountedOptions& options) : inner_(std::move(inner)), options_(options), scopes_(1) {
    BeginForkGuard(this, ForkRank::kCache);
  }
  ~Counter() override { EndForkGuard(this); }

  absl::StatusOr<AnyBuf> Alloc(std::size_t nbytes, const BufferSpec& spec) {
    if (nbytes == 0 || spec.external_ptr.has_value()) return inner_.alloc(nbytes, spec);
    Failure failure{this};
    ThreadCounts* const thread = ThisThread();
    absl::StatusOr<AnyBuf> buf = inner_.alloc(nbytes, spec);
    if (!buf.ok()) return buf;
    failure.counter = nullptr;
    const std::lock_guard lock(mutex_);
    current_bytes_ += nbytes;
    ++current_buffers_;
    for (Counts& scope : scopes_) {
      scope.peak_bytes = std::max(scope.peak_bytes, current_bytes_);
      scope.peak_buffers = std::max(scope.peak_buffers, current_buffers_);
      scope.total_bytes += nbytes;
      ++scope.allocations;
    }
    if (thread != nullptr) {
      thread->allocated_bytes += nbytes;
      ++thread->allocations;
    }
    return buf;
  }

  absl::Status Free(const AnyBuf& buf, std::size_t nbytes, const BufferSpec& spec) {
    if (nbytes == 0 || spec.external_ptr.has_value()) return inner_.free(buf, nbytes, spec);
    ThreadCounts* const thread = ThisThread();
    absl::Status freed = inner_.free(buf, nbytes, spec);
    if (!freed.ok()) return freed;
    const std::lock_guard lock(mutex_);
    // Not below 0, also where a caller frees what it was not given.
    current_bytes_ -= std::min(current_bytes_, nbytes);
    current_buffers_ -= std::min<std::size_t>(current_buffers_, 1);
    for (Counts& scope : scopes_) ++scope.frees;
    if (thread != nullptr) {
      thread->freed_bytes += nbytes;
      ++thread->frees;
    }
    return freed;
  }

  Counts counts() const override {
    const std::lock_guard lock(mutex_);
    return WithCurrent(scopes_.front());
  }

  void PushScope() override {
    const std::lock_guard lock(mutex_);
    scopes_.push_back({.peak_bytes = current_bytes_, .peak_buffers = current_buffers_});
  }

  std::optional<Counts> PopScope() override {
    const std::lock_guard lock(mutex_);
    if (scopes_.size() == 1) return std::nullopt;
    const Counts scope = WithCurrent(scopes_.back());
    scopes_.pop_back();
    return scope;
  }

  std::map<std::thread::id, ThreadCounts> by_thread() const override {
    const std::lock_guard lock(mutex_);
    return threads_;
  }

 private:
  // An alloc that does not return a buffer, however it ends.
  struct Failure {
    ~Failure() {
      if (counter == nullptr) return;
      const std::lock_guard lock(counter->mutex_);
      for (Counts& scope : counter->scopes_) ++scope.failed_allocations;
    }
    Counter* counter;
  };

  Counts WithCurrent(Counts counts) const {
    counts.current_bytes = current_bytes_;
    counts.current_buffers = current_buffers_;
    return counts;
  }

  // Made before the inner call, so that nothing can fail after it.
  ThreadCounts* ThisThread() {
    if (!options_.by_thread) return nullptr;
    const std::lock_guard lock(mutex_);
    return &threads_[std::this_thread::get_id()];
  }

  void BeforeFork() override { mutex_.lock(); }
  void AfterFork(bool) override { mutex_.unlock(); }

  const AnyRecord inner_;
  const CountedOptions options_;
  mutable std::mutex mutex_;
  std::size_t current_bytes_ = 0;
  std::size_t current_buffers_ = 0;
  std::vector<Counts> scopes_;  // the first is the whole; `current_` of each is above
  std::map<std::thread::id, ThreadCounts> threads_;
};

}  // namespace

absl::StatusOr<AnyRecord> CountedLayer(AnyRecord inner, const CountedOptions& options) {
  AnyRecord layered = inner;
  auto counter = std::make_shared<Counter>(std::move(inner), options);
  layered.alloc = [counter](std::size_t nbytes, const BufferSpec& spec) { return counter->Alloc(nbytes, spec); };
  layered.free = [counter](const AnyBuf& buf, std::size_t nbytes, const BufferSpec& spec) {
    return counter->Free(buf, nbytes, spec);
  };
  layered.controls.Add<CountedControl>(std::move(counter));
  MarkLayer(layered, "counted");
  return layered;
}

absl::StatusOr<PackedAllocator> Counted(const PackedAllocator& packed, const CountedOptions& options) {
  return ApplyLayer(packed, [&](AnyRecord inner) { return CountedLayer(std::move(inner), options); });
}

}  // namespace packalloc
