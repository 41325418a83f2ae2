#include "lib/registry/once_map.h"

#include <new>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace packalloc {

// Follows who waits for whom, from the maker of `key` on.
bool OnceMap::WaitWouldDeadlock(const std::string& key) const {
  const std::string* next = &key;
  while (true) {
    const auto maker = making_.find(*next);
    if (maker == making_.end()) return false;
    if (maker->second == std::this_thread::get_id()) return true;
    const auto waits = waiting_.find(maker->second);
    if (waits == waiting_.end()) return false;
    next = &waits->second;
  }
}

absl::StatusOr<PackedAllocator> OnceMap::GetOrMake(const std::string& key,
                                                   const std::function<absl::StatusOr<PackedAllocator>()>& make) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (making_.count(key) != 0) {
    if (WaitWouldDeadlock(key)) {
      return absl::FailedPreconditionError(absl::StrCat("opening ", key, " needs ", key, " itself to be opened first"));
    }
    waiting_.emplace(std::this_thread::get_id(), key);
    made_.wait(lock);
    waiting_.erase(std::this_thread::get_id());
  }
  if (const auto it = kept_.find(key); it != kept_.end()) return it->second;

  const std::uint64_t clears = clears_;
  // Also when `make` throws.
  struct Making {
    Making(OnceMap& map, const std::string& key) : map(map), key(key) {
      map.making_.emplace(key, std::this_thread::get_id());
    }
    ~Making() {
      const std::lock_guard<std::mutex> lock(map.mutex_);
      map.making_.erase(key);
      map.made_.notify_all();
    }
    OnceMap& map;
    const std::string& key;
  };
  const Making making(*this, key);
  lock.unlock();
  absl::StatusOr<PackedAllocator> result = make();
  const std::lock_guard<std::mutex> relock(mutex_);
  if (result.ok() && clears == clears_) kept_.emplace(key, *result);
  return result;
}

std::map<std::string, PackedAllocator> OnceMap::Take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++clears_;
  return std::exchange(kept_, {});
}

void OnceMap::AfterFork(bool in_child) {
  if (in_child) {
    // The others who were at it, and who waited, do not exist here.
    std::erase_if(making_, [](const auto& entry) { return entry.second != std::this_thread::get_id(); });
    waiting_.clear();
    ::new (&made_) std::condition_variable;
  }
  mutex_.unlock();
}

}  // namespace packalloc
