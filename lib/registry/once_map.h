// Allocators by key, each made once: who asks while another thread makes it waits for that one. Makers run without a
// lock and may use the map themselves.
//
//   OnceMap opened;
//   absl::StatusOr<PackedAllocator> device = opened.GetOrMake("CUDA:0", [] { return OpenCuda(0); });
#ifndef PACKALLOC_LIB_REGISTRY_ONCE_MAP_H_
#define PACKALLOC_LIB_REGISTRY_ONCE_MAP_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "lib/fork_guard.h"
#include "packalloc/packed_allocator.h"

namespace packalloc {

// Thread-safe. In a forked child nothing is being made but by the thread that forked, and nobody is waited for.
class OnceMap final : private ForkGuarded {
 public:
  OnceMap() { BeginForkGuard(this, ForkRank::kRegistry); }
  ~OnceMap() override { EndForkGuard(this); }
  OnceMap(const OnceMap&) = delete;
  OnceMap& operator=(const OnceMap&) = delete;

  // What is kept under `key`, else what `make` gives. A status or exception of `make` is its caller's alone and nothing
  // is kept; whoever waited for it tries for himself. FAILED_PRECONDITION where waiting would never end: the key is
  // being made by this very thread, or by one that waits for what this one makes.
  absl::StatusOr<PackedAllocator> GetOrMake(const std::string& key,
                                            const std::function<absl::StatusOr<PackedAllocator>()>& make);

  // What is kept, which is forgotten, as is what is being made as soon as it is done.
  std::map<std::string, PackedAllocator> Take();

 private:
  void BeforeFork() override { mutex_.lock(); }
  void AfterFork(bool in_child) override;
  bool WaitWouldDeadlock(const std::string& key) const;

  std::mutex mutex_;
  std::condition_variable made_;
  std::map<std::string, PackedAllocator> kept_;
  std::map<std::string, std::thread::id> making_;
  std::map<std::thread::id, std::string> waiting_;
  std::uint64_t clears_ = 0;
};

}  // namespace packalloc

#endif  // PACKALLOC_LIB_REGISTRY_ONCE_MAP_H_
