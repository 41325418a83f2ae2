// What must be whole in a forked child takes its locks before the fork and releases them after, on both sides.
#ifndef PACKALLOC_LIB_FORK_GUARD_H_
#define PACKALLOC_LIB_FORK_GUARD_H_

#include <unistd.h>

#include <atomic>
#include <memory>

namespace packalloc {

class ForkGuarded {
 public:
  virtual ~ForkGuarded() = default;
  virtual void BeforeFork() = 0;
  // In the child no other thread exists any more.
  virtual void AfterFork(bool in_child) = 0;
};

// Locks of a lower rank are taken first; so a thread that holds one may take one of a higher rank.
enum class ForkRank { kCache, kReclaim, kRegistry };

// Until EndForkGuard, `object` is locked across every fork. The two wait for a fork under way. Thread-safe.
void BeginForkGuard(ForkGuarded* object, ForkRank rank);
void EndForkGuard(ForkGuarded* object);

// The process's T, made when first asked for and never destroyed. As a variable that is static in a function it would
// hang for ever in a child that is forked while it is made; this one is then made again. Thread-safe.
template <typename T>
T& OneOfTheProcess() {
  static constinit std::atomic<T*> one{nullptr};
  T* found = one.load(std::memory_order_acquire);
  if (found != nullptr) return *found;
  auto made = std::make_unique<T>();
  if (one.compare_exchange_strong(found, made.get(), std::memory_order_acq_rel)) return *made.release();
  return *found;
}

// What Make() gives, called by the first who asks, while the others wait; kept for ever. For what cannot be made again:
// nullptr in a child that was forked while it was made. Thread-safe.
template <auto Make>
auto OnceUnlessForked() -> const decltype(Make())* {
  using T = decltype(Make());
  static constinit std::atomic<const T*> finished{nullptr};
  static constinit std::atomic<pid_t> maker{0};
  if (const T* made = finished.load(std::memory_order_acquire)) return made;
  pid_t first = 0;
  const pid_t self = getpid();
  if (!maker.compare_exchange_strong(first, self) && first != self) return nullptr;
  static const T& made = *new T(Make());
  finished.store(&made, std::memory_order_release);
  return &made;
}

}  // namespace packalloc

#endif  // PACKALLOC_LIB_FORK_GUARD_H_
