// What a layer remembers of each buffer that is in use, found again by its handle.
//
// A buffer is identified once, when it is added: its handle gets a serial number unless it has one, and boxes and
// layers further out keep that number. A handle that outlived its buffer is therefore never taken for a later buffer at
// the same address. A handle without that number is found by its address: a typed record's handles have none, and a
// cache further out serves the same memory as a new buffer.
#ifndef PACKALLOC_LIB_LAYERS_BUFFER_MAP_H_
#define PACKALLOC_LIB_LAYERS_BUFFER_MAP_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lib/fork_guard.h"
#include "packalloc/packed_allocator.h"

namespace packalloc {

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

// Thread-safe; locked across forks.
template <typename T>
class BufferMap final : private ForkGuarded {
 public:
  struct Entry {
    DeviceAddress at;
    std::size_t nbytes = 0;
    T value;
    std::uint64_t serial_number() const { return serial; }

   private:
    friend class BufferMap;
    std::uint64_t serial = 0;
    bool listed = false;
    bool part = false;  // another buffer has, or had, the same serial number
    bool overlaps = false;
  };
  using Pointer = std::shared_ptr<Entry>;
  struct Found {
    Pointer entry;           // null: not in use here
    std::size_t offset = 0;  // of a handle that was found by its address: bytes from the buffer's start
    explicit operator bool() const { return entry != nullptr; }
  };

  BufferMap() { BeginForkGuard(this, ForkRank::kCache); }
  ~BufferMap() override { EndForkGuard(this); }
  BufferMap(const BufferMap&) = delete;
  BufferMap& operator=(const BufferMap&) = delete;

  // Remembers the buffer of `buf`, which is identified by it (AnyBuf::Identify); `at` is its address. `overlaps`: the
  // memory may be part of another buffer's (external_ptr). May throw std::bad_alloc, and adds nothing then.
  Pointer Add(AnyBuf& buf, DeviceAddress at, std::size_t nbytes, T value, bool overlaps) {
    auto entry = std::make_shared<Entry>();
    entry->at = at;
    entry->nbytes = nbytes;
    entry->value = std::move(value);
    entry->serial = buf.Identify();
    entry->overlaps = overlaps;
    const std::lock_guard lock(mutex_);
    List(entry);
    return entry;
  }

  // The buffer of a handle with that serial number. `addr_of` gives the address of the handle; it is called only where
  // a layer below has cut up one buffer, whose parts have one number.
  template <typename AddrOf>
  Found FindSerial(std::uint64_t serial, const AddrOf& addr_of) const {
    {
      const std::lock_guard lock(mutex_);
      const auto it = by_serial_.find(serial);
      if (it == by_serial_.end()) return {};
      if (!it->second->part) return {it->second};
    }
    const DeviceAddress at = addr_of();
    const std::lock_guard lock(mutex_);
    const auto [first, last] = by_serial_.equal_range(serial);
    for (auto it = first; it != last; ++it) {
      const std::size_t offset = OffsetInside(it->second->at, it->second->nbytes, at);
      if (offset != kNotInside) return {it->second, offset};
    }
    return {};
  }

  // As FindSerial, or else the buffer that holds the handle's address.
  template <typename AddrOf>
  Found Find(std::uint64_t serial, const AddrOf& addr_of) const {
    const Found found = FindSerial(serial, addr_of);
    return found ? found : FindAddress(addr_of());
  }

  // The buffer that holds that address.
  Found FindAddress(DeviceAddress at) const {
    const std::lock_guard lock(mutex_);
    return At(at);
  }

  // False where it was removed before.
  bool Remove(const Pointer& entry) {
    const std::lock_guard lock(mutex_);
    if (!entry->listed) return false;
    entry->listed = false;
    Erase(by_serial_, entry->serial, entry);
    Erase(MapOf(*entry), KeyOf(entry->at), entry);
    return true;
  }

  // Undoes Remove.
  void Restore(const Pointer& entry) {
    const std::lock_guard lock(mutex_);
    List(entry);
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

  template <typename Multimap>
  static void Erase(Multimap& map, const typename Multimap::key_type& key, const Pointer& entry) {
    const auto [first, last] = map.equal_range(key);
    const auto it = std::find_if(first, last, [&](const auto& listed) { return listed.second == entry; });
    if (it != last) map.erase(it);
  }

  void List(const Pointer& entry) {
    const auto at = MapOf(*entry).emplace(KeyOf(entry->at), entry);
    try {
      const auto [first, last] = by_serial_.equal_range(entry->serial);
      for (auto it = first; it != last; ++it) entry->part = it->second->part = true;
      by_serial_.emplace(entry->serial, entry);
    } catch (...) {
      MapOf(*entry).erase(at);
      throw;
    }
    entry->listed = true;
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
  std::unordered_multimap<std::uint64_t, Pointer> by_serial_;
  ByAddress owned_;
  ByAddress overlapping_;
};

}  // namespace packalloc

#endif  // PACKALLOC_LIB_LAYERS_BUFFER_MAP_H_
