// The lock of one shard of the cache.
#ifndef PACKALLOC_LIB_LAYERS_SHARD_LOCK_H_
#define PACKALLOC_LIB_LAYERS_SHARD_LOCK_H_

#include <sched.h>

#include <atomic>

namespace packalloc {

// A spinlock: held for some dozen instructions, where locking and unlocking a std::mutex costs more than the work.
class ShardLock {
 public:
  bool try_lock() { return !locked_.exchange(true, std::memory_order_acquire); }
  void lock() {
    while (!try_lock()) [[unlikely]] {
        for (int i = 0; i < kSpins && locked_.load(std::memory_order_relaxed); ++i) Pause();
        if (locked_.load(std::memory_order_relaxed)) sched_yield();
      }
  }
  void unlock() { locked_.store(false, std::memory_order_release); }

 private:
  static constexpr int kSpins = 64;
  static void Pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
  }
  std::atomic<bool> locked_{false};
};

}  // namespace packalloc

#endif  // PACKALLOC_LIB_LAYERS_SHARD_LOCK_H_
