// HandleTable: objects behind numbers that can be checked. A handle is kind, generation and index, never an address, so
// one that was freed, is of another kind or was made up is found out without touching memory that is gone.
//
//   HandleTable<Thing> things(1, "thing");
//   absl::StatusOr<std::uint64_t> handle = things.Add(Thing{});
//   if (auto pin = things.Find(*handle); pin.ok()) (*pin)->Use();   // stays while pinned
//   absl::Status closed = things.Close(*handle);
//
// Lock-free: usable in a forked child, and no user code runs under a lock.
#ifndef PACKALLOC_LIB_C_HANDLE_TABLE_H_
#define PACKALLOC_LIB_C_HANDLE_TABLE_H_

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace packalloc {

template <typename T>
class HandleTable {
  struct Slot;

 public:
  // `kind`, 0 to 7, tells handles of several tables apart; `what` names the object in messages.
  HandleTable(unsigned kind, const char* what) : kind_(kind), what_(what) {}
  // With what is in it. (The library's own tables live as long as the process.)
  ~HandleTable() {
    for (std::uint32_t index = 0; Slot* slot = index < kMaxSlots ? At(index) : nullptr; ++index) {
      if ((slot->state.load(std::memory_order_relaxed) & kLive) != 0) std::destroy_at(slot->get());
    }
    for (std::atomic<Slot*>& chunk : chunks_) delete[] chunk.load(std::memory_order_relaxed);
  }
  HandleTable(const HandleTable&) = delete;
  HandleTable& operator=(const HandleTable&) = delete;

  // Keeps an object from being destroyed.
  class Pin {
   public:
    Pin(Pin&& other) noexcept : table_(other.table_), slot_(std::exchange(other.slot_, nullptr)) {}
    Pin& operator=(Pin&&) = delete;
    ~Pin() {
      if (slot_ != nullptr) table_->Unpin(*slot_);
    }
    const T* operator->() const { return slot_->get(); }
    const T& operator*() const { return *slot_->get(); }

   private:
    friend class HandleTable;
    Pin(HandleTable* table, Slot* slot) : table_(table), slot_(slot) {}
    HandleTable* table_;
    Slot* slot_;
  };

  // The only use of an object that nobody has pinned: for one that is about to go, if that succeeds.
  class Exclusive {
   public:
    Exclusive(Exclusive&& other) noexcept : table_(other.table_), slot_(std::exchange(other.slot_, nullptr)) {}
    Exclusive& operator=(Exclusive&&) = delete;
    ~Exclusive() {
      if (slot_ != nullptr) slot_->state.fetch_and(~kClosed, std::memory_order_release);
    }
    const T* operator->() const { return slot_->get(); }
    void Destroy() && { table_->Destroy(*std::exchange(slot_, nullptr)); }

   private:
    friend class HandleTable;
    Exclusive(HandleTable* table, Slot* slot) : table_(table), slot_(slot) {}
    HandleTable* table_;
    Slot* slot_;
  };

  // RESOURCE_EXHAUSTED where there are no numbers left. After an error or exception `value` is as it was.
  absl::StatusOr<std::uint64_t> Add(T&& value) {
    static_assert(std::is_nothrow_move_constructible_v<T>);
    std::uint32_t index = Pop();
    if (index == kNone) {
      index = used_.fetch_add(1, std::memory_order_relaxed);
      if (index >= kMaxSlots) {
        used_.fetch_sub(1, std::memory_order_relaxed);
        return absl::ResourceExhaustedError(absl::StrCat("there are ", kMaxSlots, " ", what_, " handles already"));
      }
      MakeChunk(ChunkOf(index));
    }
    Slot& slot = *At(index);
    ::new (slot.storage) T(std::move(value));
    const std::uint64_t state = slot.state.load(std::memory_order_relaxed);
    slot.state.store(state | kLive, std::memory_order_release);
    return kHandle | (std::uint64_t{kind_} << kKindShift) | ((state >> 32) << kIndexBits) | index;
  }

  // INVALID_ARGUMENT for a handle that is none, or no longer.
  absl::StatusOr<Pin> Find(std::uint64_t handle) {
    absl::StatusOr<Slot*> slot = SlotOf(handle);
    if (!slot.ok()) return slot.status();
    std::uint64_t state = (*slot)->state.load(std::memory_order_acquire);
    do {
      if (!IsOpen(state, handle)) return Gone();
      if ((state & kPins) == kPins) return absl::ResourceExhaustedError(absl::StrCat("too many uses of one ", what_));
    } while (!(*slot)->state.compare_exchange_weak(state, state + 1, std::memory_order_acquire));
    return Pin(this, *slot);
  }

  // Ends the handle; the object goes with its last pin. INVALID_ARGUMENT as Find.
  absl::Status Close(std::uint64_t handle) {
    absl::StatusOr<Slot*> slot = SlotOf(handle);
    if (!slot.ok()) return slot.status();
    std::uint64_t state = (*slot)->state.load(std::memory_order_acquire);
    do {
      if (!IsOpen(state, handle)) return Gone();
    } while (!(*slot)->state.compare_exchange_weak(state, state | kClosed, std::memory_order_acq_rel));
    if ((state & kPins) == 0) Destroy(**slot);
    return absl::OkStatus();
  }

  // FAILED_PRECONDITION while there are pins; INVALID_ARGUMENT as Find.
  absl::StatusOr<Exclusive> Lock(std::uint64_t handle) {
    absl::StatusOr<Slot*> slot = SlotOf(handle);
    if (!slot.ok()) return slot.status();
    std::uint64_t state = (*slot)->state.load(std::memory_order_acquire);
    do {
      if (!IsOpen(state, handle)) return Gone();
      if (const std::uint64_t pins = state & kPins; pins != 0) {
        return absl::FailedPreconditionError(absl::StrCat("the ", what_, " is in use by ", pins,
                                                          " views or calls under way: free or finish those first"));
      }
    } while (!(*slot)->state.compare_exchange_weak(state, state | kClosed, std::memory_order_acq_rel));
    return Exclusive(this, *slot);
  }

 private:
  // Handle: one bit that no address of a program has, kind, generation, index. Slot state: generation in the upper
  // half, then the flags and the number of pins.
  static constexpr std::uint64_t kHandle = std::uint64_t{1} << 63;
  static constexpr unsigned kKindShift = 60;
  static constexpr unsigned kIndexBits = 28;
  static constexpr std::uint64_t kClosed = std::uint64_t{1} << 31;
  static constexpr std::uint64_t kLive = std::uint64_t{1} << 30;
  static constexpr std::uint64_t kPins = kLive - 1;
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  // Chunk k has kFirstChunk << k slots, so that few pointers reach many slots and no slot ever moves.
  static constexpr std::uint32_t kFirstChunk = 64;
  static constexpr std::uint32_t kChunks = 21;
  static constexpr std::uint32_t kMaxSlots = kFirstChunk * ((1u << kChunks) - 1);
  static_assert(kMaxSlots <= (1u << kIndexBits));
  static_assert(sizeof(void*) == sizeof(std::uint64_t), "handles are pointers in C");

  struct Slot {
    std::atomic<std::uint64_t> state{0};
    std::atomic<std::uint32_t> next{kNone};
    std::uint32_t index = 0;
    alignas(T) std::byte storage[sizeof(T)];
    T* get() { return std::launder(reinterpret_cast<T*>(storage)); }
  };

  static bool IsOpen(std::uint64_t state, std::uint64_t handle) {
    return static_cast<std::uint32_t>(state >> 32) == static_cast<std::uint32_t>(handle >> kIndexBits) &&
           (state & (kLive | kClosed)) == kLive;
  }
  static std::uint32_t ChunkOf(std::uint32_t index) {
    return static_cast<std::uint32_t>(std::bit_width((index / kFirstChunk + 1) / 2));
  }

  absl::Status Gone() const {
    return absl::InvalidArgumentError(absl::StrCat("the ", what_, " handle was freed or never given out"));
  }

  absl::StatusOr<Slot*> SlotOf(std::uint64_t handle) {
    if (handle == 0) return absl::InvalidArgumentError(absl::StrCat("the ", what_, " handle is NULL"));
    if ((handle & kHandle) == 0 || ((handle >> kKindShift) & 7u) != kind_) {
      return absl::InvalidArgumentError(absl::StrCat("that is no ", what_, " handle"));
    }
    const auto index = static_cast<std::uint32_t>(handle & ((std::uint64_t{1} << kIndexBits) - 1));
    Slot* slot = index < kMaxSlots ? At(index) : nullptr;
    if (slot == nullptr) return Gone();
    return slot;
  }

  // Null where that chunk was never made.
  Slot* At(std::uint32_t index) {
    const std::uint32_t chunk = ChunkOf(index);
    Slot* slots = chunks_[chunk].load(std::memory_order_acquire);
    return slots == nullptr ? nullptr : slots + (index - kFirstChunk * ((1u << chunk) - 1));
  }

  void MakeChunk(std::uint32_t chunk) {
    if (chunks_[chunk].load(std::memory_order_acquire) != nullptr) return;
    const std::uint32_t count = kFirstChunk << chunk;
    auto slots = std::make_unique<Slot[]>(count);
    for (std::uint32_t i = 0; i < count; ++i) slots[i].index = kFirstChunk * ((1u << chunk) - 1) + i;
    Slot* none = nullptr;
    if (chunks_[chunk].compare_exchange_strong(none, slots.get(), std::memory_order_acq_rel)) slots.release();
  }

  void Unpin(Slot& slot) {
    const std::uint64_t before = slot.state.fetch_sub(1, std::memory_order_acq_rel);
    if ((before & kPins) == 1 && (before & kClosed) != 0) Destroy(slot);
  }

  // The slot is closed and has no pins: nobody else is here.
  void Destroy(Slot& slot) {
    std::destroy_at(slot.get());
    const std::uint64_t generation = (slot.state.load(std::memory_order_relaxed) >> 32) + 1;
    slot.state.store(generation << 32, std::memory_order_release);
    // A slot whose generations are used up is not used again: its numbers would come back.
    if (generation < kNone) Push(slot);
  }

  // Free slots: a stack whose head has a count beside the index, against a head that went and came back.
  void Push(Slot& slot) {
    std::uint64_t head = free_.load(std::memory_order_relaxed);
    do {
      slot.next.store(static_cast<std::uint32_t>(head), std::memory_order_relaxed);
    } while (!free_.compare_exchange_weak(head, ((head >> 32) + 1) << 32 | slot.index, std::memory_order_release,
                                          std::memory_order_relaxed));
  }
  std::uint32_t Pop() {
    std::uint64_t head = free_.load(std::memory_order_acquire);
    for (;;) {
      const auto index = static_cast<std::uint32_t>(head);
      if (index == kNone) return kNone;
      const std::uint64_t next = At(index)->next.load(std::memory_order_relaxed);
      if (free_.compare_exchange_weak(head, ((head >> 32) + 1) << 32 | next, std::memory_order_acquire)) return index;
    }
  }

  const unsigned kind_;
  const char* const what_;
  std::array<std::atomic<Slot*>, kChunks> chunks_{};
  std::atomic<std::uint32_t> used_{0};
  std::atomic<std::uint64_t> free_{kNone};
};

}  // namespace packalloc

#endif  // PACKALLOC_LIB_C_HANDLE_TABLE_H_
