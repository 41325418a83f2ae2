#include "backends/cuda/context.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "backends/cuda/driver.h"
#include "backends/cuda/error.h"

namespace packalloc::internal {
namespace {

// The primary contexts that records hold now. Never destroyed: records may go after main.
struct PrimaryContexts {
  std::mutex mutex;
  std::vector<std::weak_ptr<CudaContext>> contexts;

  // Under `mutex`.
  std::shared_ptr<CudaContext> Find(int ordinal) {
    std::erase_if(contexts, [](const std::weak_ptr<CudaContext>& context) { return context.expired(); });
    for (const std::weak_ptr<CudaContext>& weak : contexts) {
      std::shared_ptr<CudaContext> context = weak.lock();
      if (context != nullptr && context->ordinal() == ordinal) return context;
    }
    return nullptr;
  }
};

PrimaryContexts& Primary() {
  static auto& primary = *new PrimaryContexts;
  return primary;
}

std::uint64_t NewContextId() {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

absl::Status CheckCallersContext(const CudaDriver& driver, CudaContext& context) {
  ScopedContext scope(context);
  if (!scope.status().ok()) return scope.status();
  if (driver.cuCtxGetDevice == nullptr) return absl::OkStatus();
  CUdevice device = 0;
  if (const CUresult result = driver.Call(driver.cuCtxGetDevice, &device); result != CUDA_SUCCESS) {
    return context.Check(result, "cuCtxGetDevice");
  }
  if (device == context.device()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("CudaOptions::context is not a context of ", context.name(),
                                                 " but of the driver's device ", device));
}

}  // namespace

absl::StatusOr<std::shared_ptr<CudaContext>> CudaContext::Open(const CudaDriver& driver, int ordinal,
                                                               CUcontext callers) {
  const std::string name = absl::StrCat("CUDA:", ordinal);
  int count = 0;
  if (const CUresult result = driver.Call(driver.cuDeviceGetCount, &count); result != CUDA_SUCCESS) {
    return CudaError(driver, "cuDeviceGetCount", result);
  }
  if (count <= 0) return absl::UnavailableError("0 CUDA devices: the driver has none");
  if (ordinal < 0 || ordinal >= count) {
    return absl::NotFoundError(absl::StrCat("there is no ", name, ": the driver has ", count,
                                            count == 1 ? " device, CUDA:0" : " devices, from CUDA:0 on"));
  }
  CUdevice device = 0;
  if (const CUresult result = driver.Call(driver.cuDeviceGet, &device, ordinal); result != CUDA_SUCCESS) {
    return CudaError(driver, absl::StrCat(name, ": cuDeviceGet"), result);
  }
  if (callers != nullptr) {
    auto context = std::make_shared<CudaContext>(driver, ordinal, device, callers, false);
    if (absl::Status checked = CheckCallersContext(driver, *context); !checked.ok()) return checked;
    return context;
  }
  CUcontext handle = nullptr;
  if (const CUresult result = driver.Call(driver.cuDevicePrimaryCtxRetain, &handle, device); result != CUDA_SUCCESS) {
    return CudaError(driver, absl::StrCat(name, ": cuDevicePrimaryCtxRetain"), result);
  }
  // Retained before the lock is taken; of two threads, one gives its retention back.
  auto made = std::make_shared<CudaContext>(driver, ordinal, device, handle, true);
  std::shared_ptr<CudaContext> existing;
  {
    PrimaryContexts& primary = Primary();
    const std::lock_guard<std::mutex> lock(primary.mutex);
    existing = primary.Find(ordinal);
    if (existing == nullptr) primary.contexts.push_back(made);
  }
  return existing != nullptr ? existing : made;
}

std::shared_ptr<CudaContext> CudaContext::Existing(int ordinal) {
  PrimaryContexts& primary = Primary();
  const std::lock_guard<std::mutex> lock(primary.mutex);
  return primary.Find(ordinal);
}

CudaContext::CudaContext(const CudaDriver& driver, int ordinal, CUdevice device, CUcontext handle, bool is_primary)
    : driver_(driver),
      ordinal_(ordinal),
      device_(device),
      handle_(handle),
      is_primary_(is_primary),
      id_(NewContextId()),
      name_(absl::StrCat("CUDA:", ordinal)) {}

CudaContext::~CudaContext() {
  if (is_primary_ && !MemoryIsGone() && !driver_.forked()) {
    driver_.Release(driver_.cuDevicePrimaryCtxRelease_v2, device_);
  }
}

absl::Status CudaContext::Usable() const {
  if (driver_.forked()) return ForkedChild();
  if (driver_.gone()) return absl::UnavailableError(absl::StrCat(name_, ": the CUDA driver has shut down"));
  if (lost_.load(std::memory_order_acquire)) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return absl::DataLossError(why_lost_);
  }
  return absl::OkStatus();
}

absl::Status CudaContext::Lose(absl::string_view why) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!lost_.load(std::memory_order_relaxed)) {
      why_lost_ =
          absl::StrCat(why, "; the context and all memory of it are lost, only a new process can use the device again");
      lost_.store(true, std::memory_order_release);
    }
  }
  return Usable();
}

absl::Status CudaContext::Check(CUresult result, absl::string_view call, std::size_t nbytes) {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  std::string what = absl::StrCat(name_, ": ", call);
  if (nbytes != 0) absl::StrAppend(&what, " of ", nbytes, " bytes");
  if (IsSticky(result)) return Lose(DescribeCudaError(driver_, what, result));
  return CudaError(driver_, what, result);
}

absl::StatusOr<bool> CudaContext::CanReach(const CudaContext& peer) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [id, reachable] : reachable_) {
      if (id == peer.id_) return reachable;
    }
  }
  int can = 0;
  absl::Status asked =
      Check(driver_.Call(driver_.cuDeviceCanAccessPeer, &can, device_, peer.device_), "cuDeviceCanAccessPeer");
  if (!asked.ok()) return asked;
  if (can != 0) {
    const CUresult result = driver_.Call(driver_.cuCtxEnablePeerAccess, peer.handle_, 0U);
    if (result == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED || result == CUDA_ERROR_TOO_MANY_PEERS) {
      can = 0;
    } else if (result != CUDA_SUCCESS && result != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) {
      return Check(result, "cuCtxEnablePeerAccess");
    }
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  reachable_.emplace_back(peer.id_, can != 0);
  return can != 0;
}

ScopedContext::ScopedContext(CudaContext& context) : context_(context), status_(context.Usable()) {
  if (!status_.ok()) return;
  const CudaDriver& driver = context.driver();
  status_ = context.Check(driver.Call(driver.cuCtxPushCurrent_v2, context.handle()), "cuCtxPushCurrent_v2");
}

ScopedContext::~ScopedContext() {
  if (!status_.ok()) return;
  const CudaDriver& driver = context_.driver();
  CUcontext popped = nullptr;
  if (driver.Call(driver.cuCtxPopCurrent_v2, &popped) == CUDA_SUCCESS) return;
  // The caller must get its own context back. Not blindly a second time: that could pop the caller's.
  CUcontext current = nullptr;
  if (driver.Call(driver.cuCtxGetCurrent, &current) == CUDA_SUCCESS && current == context_.handle()) {
    driver.Call(driver.cuCtxPopCurrent_v2, &popped);
  }
}

}  // namespace packalloc::internal
