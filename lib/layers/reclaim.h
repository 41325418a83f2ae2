// Caches that draw on the same memory, and the releases under way among them: so that an allocation that finds memory
// exhausted gets what other caches keep, and waits for what is just being released instead of failing.
#ifndef PACKALLOC_LIB_LAYERS_RECLAIM_H_
#define PACKALLOC_LIB_LAYERS_RECLAIM_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "lib/fork_guard.h"

namespace packalloc {

class ReclaimGroup : private ForkGuarded {
 public:
  class Member {
   public:
    virtual ~Member() = default;
    // Releases at least `nbytes` of what it keeps, or all, and tells how many bytes that were. Does not throw.
    virtual std::size_t Reclaim(std::size_t nbytes) noexcept = 0;
  };

  // The group of a memory domain (AllocatorTraits), shared by all who ask for it; one of its own for domain 0.
  static std::shared_ptr<ReclaimGroup> Of(std::uint32_t memory_domain);

  ReclaimGroup();
  ~ReclaimGroup() override;
  ReclaimGroup(const ReclaimGroup&) = delete;
  ReclaimGroup& operator=(const ReclaimGroup&) = delete;

  void Join(std::weak_ptr<Member> member);
  // Has the other members reclaim, one after another, until `nbytes` are released; tells how many bytes were. The
  // caller holds no lock.
  std::size_t Ask(std::size_t nbytes, const Member* asking);

  // Around every call that gives memory back to the inner record, on one thread. Begin is called while the lock is
  // still held under which the buffer was taken out of its cache: so nobody finds memory that is in neither.
  void BeginRelease();
  void EndRelease();
  // Counts the releases that are complete.
  std::uint64_t completed() const;
  // True once releases beyond `seen` are complete, waiting for those under way; false where there are none. On a
  // thread that is itself inside a release it does not wait.
  bool WaitForRelease(std::uint64_t seen);

 private:
  void BeforeFork() override;
  void AfterFork(bool in_child) override;

  mutable std::mutex mutex_;
  std::condition_variable released_;
  std::uint64_t under_way_ = 0;
  std::uint64_t completed_ = 0;
  std::vector<std::weak_ptr<Member>> members_;
};

}  // namespace packalloc

#endif  // PACKALLOC_LIB_LAYERS_RECLAIM_H_
