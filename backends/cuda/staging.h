// The ring of page-locked slots through which host memory goes to a device: a bounded amount of it, in chunks, so that
// filling one slot overlaps the copy from another. A slot is one thread's from Acquire until its lease ends, so no lock
// is held while it is filled or while the driver is called; it is handed out again once the copy from it is done.
//
//   absl::StatusOr<StagingRing::Lease> slot = ring.Acquire();       // waits for a slot
//   if (!slot.ok()) return slot.status();
//   if (!*slot) ...                                                 // no page-locked memory is to be had: go without
//   fill(slot->data(), n);                                          // page-aligned, slot->size() bytes
//   context.Check(driver.Call(driver.cuMemcpyHtoDAsync_v2, dest, slot->data(), n, stream), "cuMemcpyHtoDAsync_v2");
//   absl::Status fenced = slot->Fence();                            // at once after the copy was issued
#ifndef PACKALLOC_BACKENDS_CUDA_STAGING_H_
#define PACKALLOC_BACKENDS_CUDA_STAGING_H_

#include <cuda.h>

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backends/cuda/context.h"

namespace packalloc::internal {

// Waits until all work on the stream is done. An error of the wait is returned; if not even a second wait succeeds,
// nobody can tell what memory the device still uses, and the context counts as lost. The context is current.
absl::Status DrainStream(CudaContext& context, CUstream stream);

class StagingRing {
  struct Slot;

 public:
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept
        : ring_(std::exchange(other.ring_, nullptr)), slot_(std::exchange(other.slot_, nullptr)) {}
    Lease& operator=(Lease&& other) noexcept {
      std::swap(ring_, other.ring_);
      std::swap(slot_, other.slot_);
      return *this;
    }
    ~Lease() {
      if (slot_ != nullptr) ring_->Return(slot_);
    }

    explicit operator bool() const { return slot_ != nullptr; }
    std::byte* data() const;   // page-aligned, page-locked for every context
    std::size_t size() const;  // bytes

    // Marks that a copy from (or to) the slot was issued on the ring's stream: whoever gets the slot next waits for it.
    // Where that cannot be marked it waits here. The context is current.
    absl::Status Fence();
    // Waits until the copy that Fence marked is done: the slot may be filled again. The context is current.
    absl::Status Await() { return ring_->Await(*slot_); }

   private:
    friend class StagingRing;
    Lease(StagingRing* ring, Slot* slot) : ring_(ring), slot_(slot) {}
    StagingRing* ring_ = nullptr;
    Slot* slot_ = nullptr;
  };

  // `slot_bytes` is a multiple of the page size; with 0 slots there is never one.
  StagingRing(CudaContext& context, CUstream stream, std::size_t slots, std::size_t slot_bytes);
  // Release must have been called, unless no call makes sense any more.
  ~StagingRing();
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;

  // A slot that no copy uses. Makes one while there are less than the most and the others are busy, else waits. An
  // empty lease where not a single slot could be page-locked; from then on always. The context is current. A thread
  // that holds a slot must not wait for another (two such threads would wait for each other): it uses TryAcquire.
  absl::StatusOr<Lease> Acquire();
  // The same without waiting for another thread: an empty lease also where every slot is in other hands.
  absl::StatusOr<Lease> TryAcquire();

  // Gives back all memory and events. No lease is out, no copy is pending, and the context is current.
  void Release();

  struct Stats {
    std::size_t slots;
    std::size_t bytes;
    bool pinned;  // false: there is no slot and there will be none
  };
  Stats stats() const;

 private:
  bool MayGrow() const;  // under the lock
  absl::StatusOr<Lease> AcquireOr(bool wait);
  absl::StatusOr<std::unique_ptr<Slot>> MakeSlot();
  absl::StatusOr<bool> IsBusy(const Slot& slot);
  absl::Status Await(Slot& slot);
  void Return(Slot* slot);

  CudaContext& context_;
  const CUstream stream_;
  const std::size_t most_slots_;
  const std::size_t slot_bytes_;

  mutable std::mutex mutex_;  // of all below; never held during a driver call
  std::condition_variable returned_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::size_t being_made_ = 0;
  bool cannot_grow_ = false;  // page-locking failed once
  std::deque<Slot*> free_;    // oldest copy first
};

}  // namespace packalloc::internal

#endif  // PACKALLOC_BACKENDS_CUDA_STAGING_H_
