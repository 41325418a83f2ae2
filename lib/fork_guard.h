// What must be whole in a forked child takes its locks before the fork and releases them after, on both sides.
#ifndef PACKALLOC_LIB_FORK_GUARD_H_
#define PACKALLOC_LIB_FORK_GUARD_H_

namespace packalloc {

class ForkGuarded {
 public:
  virtual ~ForkGuarded() = default;
  virtual void BeforeFork() = 0;
  // In the child no other thread exists any more.
  virtual void AfterFork(bool in_child) = 0;
};

// Locks of a lower rank are taken first; so a thread that holds one may take one of a higher rank.
enum class ForkRank { kCache, kReclaim };

// Until EndForkGuard, `object` is locked across every fork. The two wait for a fork under way. Thread-safe.
void BeginForkGuard(ForkGuarded* object, ForkRank rank);
void EndForkGuard(ForkGuarded* object);

}  // namespace packalloc

#endif  // PACKALLOC_LIB_FORK_GUARD_H_
