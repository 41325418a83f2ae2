#include "lib/fork_guard.h"

#include <pthread.h>

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

namespace packalloc {
namespace {

// Caches in static storage may outlive any order of destruction.
struct Guarded {
  std::mutex mutex;
  std::vector<std::pair<ForkRank, ForkGuarded*>> objects;  // by rank
};
Guarded& Instance() { return OneOfTheProcess<Guarded>(); }

void Prepare() {
  Instance().mutex.lock();
  for (auto& [rank, object] : Instance().objects) object->BeforeFork();
}
void After(bool in_child) {
  auto& objects = Instance().objects;
  for (std::size_t i = objects.size(); i-- > 0;) objects[i].second->AfterFork(in_child);
  Instance().mutex.unlock();
}

// Before any thread can be in the middle of it. It fails only without memory; then a child forked in the middle of a
// call may hang.
[[maybe_unused]] const int kRegistered = pthread_atfork(
    &Prepare, [] { After(false); }, [] { After(true); });

}  // namespace

void BeginForkGuard(ForkGuarded* object, ForkRank rank) {
  std::lock_guard lock(Instance().mutex);
  auto& objects = Instance().objects;
  const auto after = std::find_if(objects.begin(), objects.end(), [&](const auto& o) { return rank < o.first; });
  objects.insert(after, {rank, object});
}

void EndForkGuard(ForkGuarded* object) {
  std::lock_guard lock(Instance().mutex);
  std::erase_if(Instance().objects, [&](const auto& o) { return o.second == object; });
}

}  // namespace packalloc
