// What a layer remembers of each buffer that is in use, found again by its handle.
//
// A boxed handle is found by its serial number, so a handle that outlived its buffer is never taken for a later buffer
// at the same address. The box is stamped after the layer's alloc has returned, on the same thread, and so with the
// number that is next on that thread. A handle of a typed record has no number and is found by its address.
#ifndef PACKALLOC_LIB_LAYERS_BUFFER_MAP_H_
#define PACKALLOC_LIB_LAYERS_BUFFER_MAP_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "lib/fork_guard.h"
#include "packalloc/packed_allocator.h"

namespace packalloc {

// The number that the next box of this thread will have.
inline std::uint64_t PeekSerial() {
  if ((internal::next_serial & (internal::kSerialLease - 1)) == 0) {
    internal::LeaseSerials();
    --internal::next_serial;
  }
  return internal::next_serial;
}

// Where [at, at + nbytes) holds `point`: its distance from `at`, else kNotInside. An empty range holds its start.
inline constexpr std::size_t kNotInside = AnyBuf::kUnknownSize;
inline std::size_t OffsetInside(DeviceAddress at, std::size_t nbytes, DeviceAddress point) {
  if (at == point) return 0;
  if (at.value == point.value) {
    return point.byte_offset > at.byte_offset && point.byte_offset - at.byte_offset < nbytes
               ? point.byte_offset - at.byte_offset
               : kNotInside;
  }
  const bool pointers = at.byte_offset == 0 && point.byte_offset == 0;
  return pointers && point.value > at.value && point.value - at.value < nbytes ? point.value - at.value : kNotInside;
}

// Thread-safe; locked across forks. Calls a record's addr, never under the lock.
template <typename T>
class BufferMap final : private ForkGuarded {
 public:
  struct Entry {
    DeviceAddress at;
    std::size_t nbytes = 0;
    T value;

   private:
    friend class BufferMap;
    std::uint64_t serial = 0;
    bool boxed = false;  // a handle with that serial number was seen
    bool listed = false;
    bool overlaps = false;
  };
  using Pointer = std::shared_ptr<Entry>;
  struct Found {
    Pointer entry;           // null: not in use here
    std::size_t offset = 0;  // of an unboxed handle: bytes from the buffer's start
    explicit operator bool() const { return entry != nullptr; }
  };

  BufferMap() { BeginForkGuard(this, ForkRank::kCache); }
  ~BufferMap() override { EndForkGuard(this); }
  BufferMap(const BufferMap&) = delete;
  BufferMap& operator=(const BufferMap&) = delete;

  // To be called by the alloc of a layer, on its thread. `overlaps`: the memory may be part of another buffer's
  // (external_ptr). May throw std::bad_alloc, and changes nothing then.
  Pointer Add(DeviceAddress at, std::size_t nbytes, T value, bool overlaps) {
    auto entry = std::make_shared<Entry>();
    entry->at = at;
    entry->nbytes = nbytes;
    entry->value = std::move(value);
    entry->serial = PeekSerial();
    entry->overlaps = overlaps;
    const std::lock_guard lock(mutex_);
    List(entry);
    return entry;
  }

  // `maybe_others`: the handle may be of another allocator of the transfer domain (everywhere else the box has been
  // checked); only then is the address of a boxed one asked for.
  Found Find(const AnyBuf& buf, const AnyRecord& record, bool maybe_others = false) const {
    return Find(
        buf, [&](const Entry*) { return record.addr(buf); }, maybe_others);
  }

  // `addr_of` gives the address of `buf`, which is probably the buffer of the entry that it is given (null: unknown).
  template <typename AddrOf>
  Found Find(const AnyBuf& buf, const AddrOf& addr_of, bool maybe_others = false) const {
    const std::uint64_t serial = buf.serial();
    Pointer expected;
    if (serial != 0) {
      const std::lock_guard lock(mutex_);
      expected = Expected(serial);
      if (expected == nullptr || expected->boxed) return {expected};
      if (buf.is_view()) return {};
      if (!maybe_others && expected->serial == serial) return SeenBoxed(expected, serial, expected->at);
    }
    const DeviceAddress at = addr_of(static_cast<const Entry*>(expected.get()));
    const std::lock_guard lock(mutex_);
    return serial == 0 ? At(at) : SeenBoxed(expected, serial, at);
  }

  // False where it was removed before.
  bool Remove(const Pointer& entry) {
    const std::lock_guard lock(mutex_);
    if (!entry->listed) return false;
    entry->listed = false;
    if (const auto it = by_serial_.find(entry->serial); it != by_serial_.end() && it->second == entry) {
      by_serial_.erase(it);
    }
    ByAddress& map = MapOf(*entry);
    const auto [first, last] = map.equal_range(KeyOf(entry->at));
    for (auto it = first; it != last; ++it) {
      if (it->second != entry) continue;
      map.erase(it);
      break;
    }
    return true;
  }

  // Undoes Remove.
  void Restore(const Pointer& entry) {
    const std::lock_guard lock(mutex_);
    List(entry);
  }

  // 0 where no handle with a number was seen.
  std::uint64_t SerialOf(const Entry& entry) const {
    const std::lock_guard lock(mutex_);
    return entry.boxed ? entry.serial : 0;
  }

  std::vector<Pointer> All() const {
    const std::lock_guard lock(mutex_);
    std::vector<Pointer> all;
    for (const ByAddress* map : {&owned_, &overlapping_}) {
      for (const auto& [key, entry] : *map) all.push_back(entry);
    }
    return all;
  }

 private:
  using Key = std::pair<std::uintptr_t, std::size_t>;
  using ByAddress = std::multimap<Key, Pointer>;

  static Key KeyOf(DeviceAddress at) { return {at.value, at.byte_offset}; }
  ByAddress& MapOf(const Entry& entry) { return entry.overlaps ? overlapping_ : owned_; }

  void List(const Pointer& entry) {
    const auto at = MapOf(*entry).emplace(KeyOf(entry->at), entry);
    try {
      Pointer& slot = by_serial_[entry->serial];
      // The number was expected before and yet not given: that buffer's handle is not boxed.
      if (slot != nullptr && !slot->boxed) slot->serial = 0;
      if (entry->serial != 0) slot = entry;
    } catch (...) {
      MapOf(*entry).erase(at);
      throw;
    }
    entry->listed = true;
  }

  // The entry with that number; else one that expects a number shortly before: a layer of a user's own, further out,
  // may have allocated something else before it returned.
  Pointer Expected(std::uint64_t serial) const {
    constexpr std::uint64_t kFurther = 16;
    for (std::uint64_t back = 0; back <= kFurther && back < serial; ++back) {
      const auto it = by_serial_.find(serial - back);
      if (it != by_serial_.end() && (back == 0 || !it->second->boxed)) return it->second;
    }
    return nullptr;
  }

  // The first handle with a number that was expected. Another allocator's may have taken it where this buffer's is not
  // boxed; so it must have the address too (as far as addr could tell).
  Found SeenBoxed(const Pointer& entry, std::uint64_t serial, DeviceAddress at) const {
    if (entry->boxed) return {entry->serial == serial ? entry : nullptr};
    const DeviceAddress unknown;
    if (!entry->listed || (!(entry->at == at) && !(at == unknown) && !(entry->at == unknown))) return {};
    if (entry->serial != serial) {
      by_serial_.erase(entry->serial);
      by_serial_[serial] = entry;
      entry->serial = serial;
    }
    entry->boxed = true;
    return {entry};
  }

  Found At(DeviceAddress at) const {
    if (at == DeviceAddress{}) return {};
    Found best;
    const auto consider = [&](const Pointer& entry) {
      const std::size_t offset = OffsetInside(entry->at, entry->nbytes, at);
      if (offset == kNotInside || (best && entry->nbytes <= best.entry->nbytes)) return;
      best = {entry, offset};
    };
    // Of buffers that do not overlap only the last that starts no later can hold it; of several at one address
    // (extents of one file) the largest.
    if (auto after = owned_.upper_bound(KeyOf(at)); after != owned_.begin()) {
      const auto [first, last] = owned_.equal_range(std::prev(after)->first);
      for (auto it = first; it != last; ++it) consider(it->second);
    }
    if (best) return best;
    for (const auto& [key, entry] : overlapping_) consider(entry);
    return best;
  }

  void BeforeFork() override { mutex_.lock(); }
  void AfterFork(bool) override { mutex_.unlock(); }

  mutable std::mutex mutex_;
  mutable absl::flat_hash_map<std::uint64_t, Pointer> by_serial_;
  ByAddress owned_;
  ByAddress overlapping_;
};

}  // namespace packalloc

#endif  // PACKALLOC_LIB_LAYERS_BUFFER_MAP_H_
