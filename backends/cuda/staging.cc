#include "backends/cuda/staging.h"

#include <sys/mman.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backends/cuda/context.h"
#include "backends/cuda/driver.h"
#include "lib/mapped_memory.h"

namespace packalloc::internal {

absl::Status DrainStream(CudaContext& context, CUstream stream) {
  const CudaDriver& driver = context.driver();
  absl::Status drained = context.Check(driver.Call(driver.cuStreamSynchronize, stream), "cuStreamSynchronize");
  if (drained.ok() || context.MemoryIsGone()) return drained;
  absl::Status again = context.Check(driver.Call(driver.cuStreamSynchronize, stream), "cuStreamSynchronize");
  return again.ok() ? drained : context.Lose(again.message());
}

// Memory of our own, registered: cuMemHostAlloc does not promise page alignment, which direct I/O into a slot needs.
struct StagingRing::Slot {
  Slot(const CudaDriver& cuda, std::size_t size) : driver(cuda), bytes(size) {}
  ~Slot() {
    // A forked child has no such mapping (MADV_DONTFORK), perhaps another's at the same place.
    if (data != nullptr && !pinned && !driver.forked()) munmap(data, bytes);
  }
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;

  const CudaDriver& driver;
  const std::size_t bytes;
  std::byte* data = nullptr;
  bool pinned = false;
  CUevent done = nullptr;  // of the last copy
  bool fenced = false;     // `done` was recorded and nobody has waited for it
};

std::byte* StagingRing::Lease::data() const { return slot_->data; }
std::size_t StagingRing::Lease::size() const { return slot_->bytes; }

absl::Status StagingRing::Lease::Fence() {
  CudaContext& context = ring_->context_;
  const CudaDriver& driver = context.driver();
  const CUresult result = driver.Call(driver.cuEventRecord, slot_->done, ring_->stream_);
  if (result != CUDA_SUCCESS) {
    static_cast<void>(context.Check(result, "cuEventRecord"));  // may lose the context
    return DrainStream(context, ring_->stream_);
  }
  slot_->fenced = true;
  return absl::OkStatus();
}

StagingRing::StagingRing(CudaContext& context, CUstream stream, std::size_t slots, std::size_t slot_bytes)
    : context_(context), stream_(stream), most_slots_(slots), slot_bytes_(slot_bytes) {}

StagingRing::~StagingRing() = default;

absl::StatusOr<StagingRing::Lease> StagingRing::Acquire() { return AcquireOr(true); }
absl::StatusOr<StagingRing::Lease> StagingRing::TryAcquire() { return AcquireOr(false); }

bool StagingRing::MayGrow() const { return !cannot_grow_ && slots_.size() + being_made_ < most_slots_; }

absl::StatusOr<StagingRing::Lease> StagingRing::AcquireOr(bool wait) {
  for (;;) {
    Lease lease(this, nullptr);
    bool grow = false;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      while (free_.empty() && !(grow = MayGrow())) {
        if (!wait || slots_.size() + being_made_ == 0) return Lease();
        returned_.wait(lock);
      }
      if (grow) {
        ++being_made_;
      } else {
        lease.slot_ = free_.front();
        free_.pop_front();
      }
    }
    if (!grow) {
      absl::StatusOr<bool> busy = IsBusy(*lease.slot_);
      if (!busy.ok()) return busy.status();
      if (*busy) {
        const std::lock_guard<std::mutex> lock(mutex_);
        grow = MayGrow();
        if (grow) {
          free_.push_front(std::exchange(lease.slot_, nullptr));
          ++being_made_;
        }
      }
      if (!grow) {
        if (absl::Status done = Await(*lease.slot_); !done.ok()) return done;
        return lease;
      }
    }

    absl::StatusOr<std::unique_ptr<Slot>> made = MakeSlot();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      --being_made_;
      if (made.ok()) {
        lease.slot_ = made->get();
        slots_.push_back(*std::move(made));
      } else {
        cannot_grow_ = true;
      }
    }
    returned_.notify_all();  // for the slot that was put back, or to go without one
    if (lease.slot_ != nullptr) return lease;
    if (absl::Status usable = context_.Usable(); !usable.ok()) return usable;
  }
}

absl::StatusOr<std::unique_ptr<StagingRing::Slot>> StagingRing::MakeSlot() {
  const CudaDriver& driver = context_.driver();
  auto slot = std::make_unique<Slot>(driver, slot_bytes_);
  absl::StatusOr<std::byte*> data = MapMemory("a staging slot", slot_bytes_, kHugePage, slot_bytes_ >= kHugePage);
  if (!data.ok()) return data.status();
  slot->data = *data;
  madvise(*data, slot_bytes_, MADV_DONTFORK);  // a fork would make pages copy on write that the device reads
  absl::Status done =
      context_.Check(driver.Call(driver.cuMemHostRegister_v2, *data, slot_bytes_, CU_MEMHOSTREGISTER_PORTABLE),
                     "cuMemHostRegister_v2", slot_bytes_);
  if (!done.ok()) return done;
  slot->pinned = true;
  done = context_.Check(driver.Call(driver.cuEventCreate, &slot->done, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  if (!done.ok()) {
    slot->pinned = driver.Release(driver.cuMemHostUnregister, *data) != CUDA_SUCCESS;
    return done;
  }
  return slot;
}

absl::StatusOr<bool> StagingRing::IsBusy(const Slot& slot) {
  if (!slot.fenced) return false;
  const CUresult result = context_.driver().Call(context_.driver().cuEventQuery, slot.done);
  if (result == CUDA_ERROR_NOT_READY) return true;
  if (result == CUDA_SUCCESS) return false;
  return context_.Check(result, "cuEventQuery");
}

absl::Status StagingRing::Await(Slot& slot) {
  if (!slot.fenced) return absl::OkStatus();
  const CudaDriver& driver = context_.driver();
  absl::Status done = context_.Check(driver.Call(driver.cuEventSynchronize, slot.done), "cuEventSynchronize");
  if (done.ok()) slot.fenced = false;
  return done;
}

void StagingRing::Return(Slot* slot) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (slot->fenced) {
      free_.push_back(slot);
    } else {
      free_.push_front(slot);
    }
  }
  returned_.notify_one();
}

void StagingRing::Release() {
  const CudaDriver& driver = context_.driver();
  std::vector<std::unique_ptr<Slot>> slots;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.clear();
    slots.swap(slots_);
  }
  for (const std::unique_ptr<Slot>& slot : slots) {
    if (!context_.MemoryIsGone()) {
      driver.Release(driver.cuEventDestroy_v2, slot->done);
      // If it fails the mapping stays: the driver may still have it page-locked.
      slot->pinned = driver.Release(driver.cuMemHostUnregister, static_cast<void*>(slot->data)) != CUDA_SUCCESS;
    }
    if (context_.MemoryIsGone()) slot->pinned = false;
  }
}

StagingRing::Stats StagingRing::stats() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool pinned = most_slots_ != 0 && !(cannot_grow_ && slots_.empty() && being_made_ == 0);
  return {slots_.size(), slots_.size() * slot_bytes_, pinned};
}

}  // namespace packalloc::internal
