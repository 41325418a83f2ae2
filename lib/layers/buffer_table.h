// The buffers that one shard of the cache keeps, by key. Knows no locks.
#ifndef PACKALLOC_LIB_LAYERS_BUFFER_TABLE_H_
#define PACKALLOC_LIB_LAYERS_BUFFER_TABLE_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "lib/layers/buffer_stack.h"
#include "lib/layers/eviction.h"
#include "packalloc/buffer_spec.h"
#include "packalloc/packed_allocator.h"

namespace packalloc {

// What a cached buffer must have in common with a request: its size class and the fields of the spec that choose
// memory. Specs with other fields set are never cached.
struct BufferKey {
  std::size_t nbytes = 0;  // never 0
  std::uint32_t spec = 0;

  BufferKey() = default;
  BufferKey(std::size_t class_bytes, const BufferSpec& s)
      : nbytes(class_bytes),
        spec((s.uncached ? 1U : 0U) | (s.cpu_access ? 2U : 0U) | (s.host ? kHostBit : 0U) |
             (s.alignment == 0 ? 0U : 8U * (1U + static_cast<std::uint32_t>(std::countr_zero(s.alignment))))) {}
  bool host() const { return (spec & kHostBit) != 0; }
  BufferSpec ToSpec() const {
    BufferSpec s{.uncached = (spec & 1U) != 0, .cpu_access = (spec & 2U) != 0, .host = host()};
    if (spec >= 8) s.alignment = std::size_t{1} << (spec / 8 - 1);
    return s;
  }

 private:
  static constexpr std::uint32_t kHostBit = 4;
};

// A hash table with open addressing. Each key has its buffers oldest first; reuse takes the newest, eviction the
// oldest. A key stays when its last buffer is taken, until the table runs full of such keys and drops them.
class BufferTable {
 public:
  class alignas(64) Slot {
   public:
    bool empty() const { return buffers_.empty(); }
    bool is_ready() const { return in_order_ && buffers_.has_room(); }  // PushBytes may follow
    const AnyBuf& newest() { return buffers_.newest().buf; }
    std::uint64_t last_used() const { return last_used_; }

   private:
    friend class BufferTable;
    std::size_t nbytes_ = 0;  // 0: vacant
    std::uint32_t spec_ = 0;
    bool in_order_ = false;
    double weight_ = 0;
    std::uint64_t last_used_ = 0;
    BufferStack buffers_;
  };

  explicit BufferTable(EvictionPolicy policy) : order_(policy) {}

  // The slot of `key`, or null. Valid until the next FindOrAdd or Clear.
  Slot* Find(const BufferKey& key) {
    if (mask_ == 0) return nullptr;
    Slot& slot = slots_[Probe(key)];
    return slot.nbytes_ == 0 ? nullptr : &slot;
  }

  // A slot with room for one more buffer. May throw std::bad_alloc, and changes nothing then.
  Slot& FindOrAdd(const BufferKey& key) {
    if (Slot* slot = Find(key)) {
      slot->buffers_.MakeRoom();
      return *slot;
    }
    if ((keys_ + 1) * 4 > slots_.size() * 3) Rebuild();
    Slot& slot = slots_[Probe(key)];
    slot.buffers_.MakeRoom();
    slot.nbytes_ = key.nbytes;
    slot.spec_ = key.spec;
    slot.weight_ = order_.WeightOf(key.nbytes);
    ++keys_;
    return slot;
  }

  // Keeps `buf` as the newest of a slot that has room.
  void Push(Slot& slot, AnyBuf&& buf, std::uint64_t stamp) { slot.buffers_.Push(std::move(buf), Use(slot, stamp)); }
  // The same with a handle that copies_as_bytes, which is copied without its stamps, to a slot that is ready.
  void PushBytes(Slot& slot, const AnyBuf& buf, std::uint64_t stamp) {
    slot.last_used_ = stamp;
    slot.buffers_.PushBytes(buf, order_.PriorityOf(slot.weight_, stamp));
  }

  // Takes the newest of a slot that is not empty.
  AnyBuf PopNewest(Slot& slot, std::uint64_t stamp) {
    slot.last_used_ = stamp;
    return slot.buffers_.PopNewest();
  }
  // The same where its handle copies_as_bytes; readable until the next push.
  const AnyBuf& DropNewestBytes(Slot& slot, std::uint64_t stamp) {
    slot.last_used_ = stamp;
    return slot.buffers_.DropNewestBytes();
  }

  // The priority of what PopLowest would take, or nullopt when the table has no buffers.
  std::optional<Priority> Lowest() {
    const std::optional<EvictionOrder::Candidate> lowest = LowestCandidate();
    if (!lowest) return std::nullopt;
    return lowest->priority;
  }

  struct Evicted {
    BufferKey key;
    AnyBuf buf;
  };
  // Takes out the buffer with the lowest priority. The table has one.
  Evicted PopLowest() {
    Slot& slot = slots_[LowestCandidate()->key];
    return {KeyOf(slot), slot.buffers_.PopOldest()};
  }

  // See EvictionOrder::Advance.
  void Advance(double rank) { order_.Advance(rank); }

  // Gives back the memory of the table itself. It has no buffers.
  void Clear() {
    slots_ = std::vector<Slot>();
    mask_ = 0;
    keys_ = 0;
    order_.Clear();
  }
  std::size_t keys() const { return keys_; }

  // Calls visit(key, its number of buffers) for each key that has any.
  template <typename Visit>
  void ForEachKey(Visit visit) const {
    for (const Slot& slot : slots_) {
      if (!slot.empty()) visit(KeyOf(slot), slot.buffers_.size());
    }
  }

 private:
  static constexpr std::size_t kFewestSlots = 16;

  static BufferKey KeyOf(const Slot& slot) {
    BufferKey key;
    key.nbytes = slot.nbytes_;
    key.spec = slot.spec_;
    return key;
  }

  // The slot that has `key`, or the vacant one where it would go.
  std::size_t Probe(const BufferKey& key) const {
    // Two rounds: after one, sizes that are multiples of 1024 lie in few places.
    std::uint64_t hash = (std::uint64_t{key.nbytes} ^ (std::uint64_t{key.spec} << 48)) * 0x9E3779B97F4A7C15U;
    hash = (hash ^ (hash >> 29)) * 0xBF58476D1CE4E5B9U;
    for (std::size_t i = hash >> shift_;; i = (i + 1) & mask_) {
      const Slot& slot = slots_[i];
      if ((slot.nbytes_ == key.nbytes && slot.spec_ == key.spec) || slot.nbytes_ == 0) return i;
    }
  }

  // The priority of what is used now.
  Priority Use(Slot& slot, std::uint64_t stamp) {
    const Priority priority = order_.PriorityOf(slot.weight_, stamp);
    slot.last_used_ = stamp;
    if (!slot.in_order_) Enqueue(slot, priority);
    return priority;
  }

  void Enqueue(Slot& slot, Priority priority) {
    order_.Add(static_cast<std::uint32_t>(&slot - slots_.data()), priority);
    slot.in_order_ = true;
  }

  std::optional<EvictionOrder::Candidate> LowestCandidate() {
    return order_.Lowest([this](std::uint32_t key) -> std::optional<Priority> {
      Slot& slot = slots_[key];
      if (!slot.empty()) return slot.buffers_.oldest().priority;
      slot.in_order_ = false;
      return std::nullopt;
    });
  }

  // Drops the keys without buffers and makes the table at least twice as large as it must be.
  void Rebuild() {
    std::size_t live = 0;
    for (const Slot& slot : slots_) live += slot.empty() ? 0 : 1;
    std::vector<Slot> old(std::max(kFewestSlots, std::bit_ceil((live + 1) * 2)));
    order_.Reserve(old.size());
    old.swap(slots_);
    mask_ = slots_.size() - 1;
    shift_ = 64 - std::countr_zero(slots_.size());
    keys_ = live;
    order_.Clear();
    for (Slot& slot : old) {
      if (slot.empty()) continue;
      Slot& to = slots_[Probe(KeyOf(slot))];
      to = std::move(slot);
      Enqueue(to, to.buffers_.oldest().priority);
    }
  }

  std::vector<Slot> slots_;
  std::size_t mask_ = 0;  // slots_.size() - 1; 0 where there are none
  int shift_ = 0;         // leaves as many of a hash's upper bits as the mask has
  std::size_t keys_ = 0;
  EvictionOrder order_;
};

}  // namespace packalloc

#endif  // PACKALLOC_LIB_LAYERS_BUFFER_TABLE_H_
