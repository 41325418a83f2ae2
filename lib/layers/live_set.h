// The buffers of a record that are in use: to find a buffer that is freed twice, or not as it was allocated.
#ifndef PACKALLOC_LIB_LAYERS_LIVE_SET_H_
#define PACKALLOC_LIB_LAYERS_LIVE_SET_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "packalloc/allocator.h"

namespace packalloc {

// By address; several buffers may share one (two of one file). Thread-safe.
class LiveSet {
 public:
  void Add(DeviceAddress at, std::size_t nbytes, const BufferSpec& spec) {
    std::lock_guard lock(mutex_);
    live_.insert({{at.value, at.byte_offset}, {nbytes, spec}});
  }

  bool Contains(DeviceAddress at) {
    std::lock_guard lock(mutex_);
    return live_.count({at.value, at.byte_offset}) > 0;
  }

  // Forgets the buffer. FAILED_PRECONDITION where none is in use there, INVALID_ARGUMENT where it was allocated with
  // another size or spec.
  absl::Status Remove(DeviceAddress at, std::size_t nbytes, const BufferSpec& spec) {
    std::lock_guard lock(mutex_);
    const auto [first, last] = live_.equal_range({at.value, at.byte_offset});
    if (first == last) {
      return absl::FailedPreconditionError(
          absl::StrCat("free of a buffer of ", nbytes,
                       " bytes that is not in use: it was freed before, or comes from another allocator"));
    }
    for (auto it = first; it != last; ++it) {
      if (it->second.first != nbytes || !(it->second.second == spec)) continue;
      live_.erase(it);
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat("free of a buffer of ", nbytes, " bytes with spec ", ToString(spec),
                                                   ", but it was allocated with ", first->second.first,
                                                   " bytes and spec ", ToString(first->second.second)));
  }

  void Lock() { mutex_.lock(); }
  void Unlock() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
  std::multimap<std::pair<std::uintptr_t, std::size_t>, std::pair<std::size_t, BufferSpec>> live_;
};

}  // namespace packalloc

#endif  // PACKALLOC_LIB_LAYERS_LIVE_SET_H_
