// One CUDA context, shared by the records over it: the primary one of a device, retained once, or a caller's. Knows
// whether it is still usable, and what other contexts it can copy from directly.
#ifndef PACKALLOC_BACKENDS_CUDA_CONTEXT_H_
#define PACKALLOC_BACKENDS_CUDA_CONTEXT_H_

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "backends/cuda/driver.h"

namespace packalloc::internal {

class CudaContext {
 public:
  // Of the device with that number; `callers` null: its primary context. NOT_FOUND for a device that is not there.
  static absl::StatusOr<std::shared_ptr<CudaContext>> Open(const CudaDriver& driver, int ordinal, CUcontext callers);
  // The primary context of a device if a record holds it now, else null. Makes no driver call.
  static std::shared_ptr<CudaContext> Existing(int ordinal);

  // For Open: takes over one retention of `handle` where it is the primary context.
  CudaContext(const CudaDriver& driver, int ordinal, CUdevice device, CUcontext handle, bool is_primary);
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  const CudaDriver& driver() const { return driver_; }
  CUcontext handle() const { return handle_; }
  int ordinal() const { return ordinal_; }
  CUdevice device() const { return device_; }
  const std::string& name() const { return name_; }  // "CUDA:1"

  // OK while calls make sense. DATA_LOSS after a sticky error, UNAVAILABLE once the driver has shut down,
  // FAILED_PRECONDITION in a forked child. Makes no driver call.
  absl::Status Usable() const;
  // Whether its memory is gone anyway, so that releasing is a success without a call.
  bool MemoryIsGone() const { return lost_.load(std::memory_order_acquire) || driver_.gone(); }

  // The status of a driver call of that name, on so many bytes where that says something. A sticky result loses the
  // context.
  absl::Status Check(CUresult result, absl::string_view call, std::size_t nbytes = 0);
  // From now on every call is DATA_LOSS with this reason (the first one given).
  absl::Status Lose(absl::string_view why);

  // Whether this device can reach the memory of `peer`; turns that on. The answer is kept. This context is current.
  absl::StatusOr<bool> CanReach(const CudaContext& peer);

 private:
  const CudaDriver& driver_;
  const int ordinal_;
  const CUdevice device_;
  const CUcontext handle_;
  const bool is_primary_;
  const std::uint64_t id_;  // of peers: a handle may be another context's later
  const std::string name_;

  std::atomic<bool> lost_{false};
  mutable std::mutex mutex_;  // of the two below
  std::string why_lost_;
  std::vector<std::pair<std::uint64_t, bool>> reachable_;
};

// Makes a context current for its scope, if status() is OK; the calling thread's own is current again after it.
class ScopedContext {
 public:
  explicit ScopedContext(CudaContext& context);
  ~ScopedContext();
  ScopedContext(const ScopedContext&) = delete;
  ScopedContext& operator=(const ScopedContext&) = delete;

  const absl::Status& status() const { return status_; }

 private:
  CudaContext& context_;
  absl::Status status_;
};

}  // namespace packalloc::internal

#endif  // PACKALLOC_BACKENDS_CUDA_CONTEXT_H_
