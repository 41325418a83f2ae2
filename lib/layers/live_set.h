// The buffers of a record that are in use: to find a buffer that is freed twice, or not as it was allocated.
#ifndef PACKALLOC_LIB_LAYERS_LIVE_SET_H_
#define PACKALLOC_LIB_LAYERS_LIVE_SET_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "packalloc/allocator.h"

namespace packalloc {

// By address; several buffers may share one (two of one file). Those whose address could not be told when they were
// allocated ({0, 0}) are known by size and spec. Thread-safe.
class LiveSet {
 public:
  void Add(DeviceAddress at, std::size_t nbytes, const BufferSpec& spec) {
    std::lock_guard lock(mutex_);
    live_.insert({Key(at), {nbytes, spec}});
  }

  bool Contains(DeviceAddress at) {
    std::lock_guard lock(mutex_);
    return live_.count(Key(at)) > 0;
  }

  // Forgets the buffer; where it was remembered. FAILED_PRECONDITION where none is in use there, or its address cannot
  // be told any more, as that of a buffer that was freed; INVALID_ARGUMENT where it was allocated with another size or
  // spec.
  absl::StatusOr<DeviceAddress> Remove(DeviceAddress at, std::size_t nbytes, const BufferSpec& spec) {
    std::lock_guard lock(mutex_);
    for (const DeviceAddress& place : {at, DeviceAddress{}}) {
      const auto [first, last] = live_.equal_range(Key(place));
      for (auto it = first; it != last; ++it) {
        if (it->second.first != nbytes || !(it->second.second == spec)) continue;
        live_.erase(it);
        return place;
      }
    }
    const auto other = live_.find(Key(at));
    if (other == live_.end() || at == DeviceAddress{}) {
      return absl::FailedPreconditionError(
          absl::StrCat("free of a buffer of ", nbytes,
                       " bytes that is not in use: it was freed before, or comes from another allocator"));
    }
    return absl::InvalidArgumentError(absl::StrCat("free of a buffer of ", nbytes, " bytes with spec ", ToString(spec),
                                                   ", but it was allocated with ", other->second.first,
                                                   " bytes and spec ", ToString(other->second.second)));
  }

  void Lock() { mutex_.lock(); }
  void Unlock() { mutex_.unlock(); }

 private:
  static std::pair<std::uintptr_t, std::size_t> Key(DeviceAddress at) { return {at.value, at.byte_offset}; }

  std::mutex mutex_;
  std::multimap<std::pair<std::uintptr_t, std::size_t>, std::pair<std::size_t, BufferSpec>> live_;
};

}  // namespace packalloc

#endif  // PACKALLOC_LIB_LAYERS_LIVE_SET_H_
