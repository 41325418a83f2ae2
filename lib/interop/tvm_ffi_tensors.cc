#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/interop/tvm_ffi_abi.h"
#include "lib/interop/tvm_ffi_library.h"
#include "lib/keep_loaded.h"
#include "lib/tensor/dlpack_abi.h"
#include "lib/thread_number.h"
#include "packalloc/interop/tvm_ffi.h"
#include "packalloc/tensor/dlpack.h"
#include "packalloc/tensor/tensor_pool.h"

namespace packalloc {

namespace internal {

struct InstalledTvmFfiTensors {
  TvmFfiTensorFunctions library;
  TensorPool pool;
  std::uint32_t thread = 0;  // the only one that it is for; 0: all
  tvm_ffi_abi::TensorAllocator previous = nullptr;
};

}  // namespace internal

namespace {

using internal::InstalledTvmFfiTensors;
using internal::TvmFfiTensorFunctions;
using tvm_ffi_abi::TensorAllocator;

using Hook = std::shared_ptr<InstalledTvmFfiTensors>;

// TVM-FFI takes a function without a context, so what it works for is found here. Never destroyed: tensors are made at
// exit too.
struct Hooks {
  std::mutex mutex;
  std::vector<Hook> all;  // as installed
};
Hooks& Instance() {
  static Hooks& hooks = *new Hooks;
  return hooks;
}

constinit thread_local bool allocating = false;
struct Allocating {
  Allocating() { allocating = true; }
  ~Allocating() { allocating = false; }
  Allocating(const Allocating&) = delete;
  Allocating& operator=(const Allocating&) = delete;
};

struct Failure {
  const char* kind;
  std::string message;
};

Failure FailureOf(const absl::Status& status) {
  const char* kind = "RuntimeError";
  if (absl::IsResourceExhausted(status)) kind = "MemoryError";
  if (absl::IsInvalidArgument(status)) kind = "ValueError";
  return {kind, std::string(status.message())};
}

absl::StatusOr<DlpackVersionedPtr> Allocate(const TensorPool& pool, const dlpack_abi::Tensor* prototype) {
  if (prototype == nullptr || prototype->ndim < 0 || (prototype->ndim > 0 && prototype->shape == nullptr)) {
    return absl::InvalidArgumentError("the prototype of a tensor has no shape");
  }
  const absl::Span<const std::int64_t> shape(prototype->shape, static_cast<std::size_t>(prototype->ndim));
  const Allocating scope;
  absl::StatusOr<Tensor> tensor = pool.Empty(shape, prototype->dtype, prototype->device);
  if (!tensor.ok()) return tensor.status();
  return ToDlpackVersioned(*tensor);
}

int AllocateCallback(void* prototype, DLManagedTensorVersioned** out, void* error_context,
                     tvm_ffi_abi::SetError set_error);

// What the calling thread's tensors come from: the hook installed last for it, else for all. And what there was before
// any of ours, where there was something.
struct Sources {
  TensorPool pool;
  TensorAllocator foreign = nullptr;
};
Sources SourcesOfThread() {
  Sources sources;
  Hooks& hooks = Instance();
  const std::lock_guard lock(hooks.mutex);
  for (const std::uint32_t thread : {ThreadNumber(), std::uint32_t{0}}) {
    for (auto hook = hooks.all.rbegin(); hook != hooks.all.rend(); ++hook) {
      if ((*hook)->thread != thread) continue;
      if (!sources.pool) sources.pool = (*hook)->pool;
      if (sources.foreign == nullptr && (*hook)->previous != &AllocateCallback) sources.foreign = (*hook)->previous;
    }
  }
  return sources;
}

// What TVM-FFI calls.
int AllocateCallback(void* prototype, DLManagedTensorVersioned** out, void* error_context,
                     tvm_ffi_abi::SetError set_error) {
  try {
    const Sources sources = SourcesOfThread();
    Failure failure{};
    if (allocating) {
      if (sources.foreign != nullptr) return sources.foreign(prototype, out, error_context, set_error);
      failure = {"RuntimeError", "a TensorPool was to get its own memory from TVM-FFI's tensors, which come from it"};
    } else {
      absl::StatusOr<DlpackVersionedPtr> tensor =
          Allocate(sources.pool, static_cast<const dlpack_abi::Tensor*>(prototype));
      if (tensor.ok()) {
        *out = tensor->release();
        return 0;
      }
      failure = FailureOf(tensor.status());
    }
    set_error(error_context, failure.kind, failure.message.c_str());
  } catch (const std::exception& e) {
    set_error(error_context, "RuntimeError", e.what());
  } catch (...) {
    set_error(error_context, "RuntimeError", "the allocation threw something that is no std::exception");
  }
  return -1;
}

absl::Status Set(const TvmFfiTensorFunctions& library, TensorAllocator allocator, bool globally,
                 TensorAllocator* original = nullptr) {
  const int code = library.env_set_dlpack_managed_tensor_allocator(allocator, globally ? 1 : 0, original);
  if (code == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("TVMFFIEnvSetDLPackManagedTensorAllocator answered ", code));
}

// Does `work` while this thread has no allocator of its own, for with one the process's is neither set alone nor seen.
template <typename Work>
absl::Status WithoutThreads(const TvmFfiTensorFunctions& library, Work&& work) {
  TensorAllocator threads = nullptr;
  if (absl::Status set = Set(library, nullptr, false, &threads); !set.ok()) return set;
  absl::Status worked = work();
  worked.Update(Set(library, threads, false));
  return worked;
}

absl::Status Install(InstalledTvmFfiTensors& hook) {
  if (hook.thread != 0) return Set(hook.library, &AllocateCallback, false, &hook.previous);
  return WithoutThreads(hook.library, [&hook] {
    hook.previous = hook.library.env_get_dlpack_managed_tensor_allocator();
    // Sets the thread's too, which WithoutThreads puts right.
    return Set(hook.library, &AllocateCallback, true);
  });
}

absl::Status NotOurs() {
  return absl::FailedPreconditionError(
      "another allocator of TVM-FFI's tensors has been installed since; it goes before this one, by the handle that "
      "its "
      "installation gave (where that was dropped, both stay until the process ends)");
}

absl::Status Restore(const InstalledTvmFfiTensors& hook) {
  if (hook.thread != 0) {
    TensorAllocator found = nullptr;
    if (absl::Status set = Set(hook.library, hook.previous, false, &found); !set.ok()) return set;
    if (found == &AllocateCallback) return absl::OkStatus();
    if (absl::Status back = Set(hook.library, found, false); !back.ok()) return back;
    return NotOurs();
  }
  return WithoutThreads(hook.library, [&hook] {
    if (hook.library.env_get_dlpack_managed_tensor_allocator() != &AllocateCallback) return NotOurs();
    return Set(hook.library, hook.previous, true);
  });
}

}  // namespace

absl::StatusOr<TvmFfiTensorAllocator> InstallTvmFfiTensorAllocator(const TensorPool& pool,
                                                                   const TvmFfiTensorOptions& options) {
  if (!pool) return absl::InvalidArgumentError("tensors of TVM-FFI were to come from an empty TensorPool");
  absl::StatusOr<TvmFfiTensorFunctions> library = internal::LoadTvmFfiTensors(options.library);
  if (!library.ok()) return library.status();
  KeepLibraryLoaded();
  TvmFfiTensorAllocator handle;
  handle.installed_ = std::make_shared<InstalledTvmFfiTensors>(
      InstalledTvmFfiTensors{*library, pool, options.this_thread_only ? ThreadNumber() : 0U, nullptr});
  {
    Hooks& hooks = Instance();
    const std::lock_guard lock(hooks.mutex);  // known before it is called
    hooks.all.push_back(handle.installed_);
  }
  if (absl::Status installed = Install(*handle.installed_); !installed.ok()) {
    const std::lock_guard lock(Instance().mutex);
    std::erase(Instance().all, handle.installed_);
    return installed;
  }
  return handle;
}

absl::Status TvmFfiTensorAllocator::Uninstall() const {
  if (installed_ == nullptr) return absl::FailedPreconditionError("the TvmFfiTensorAllocator is empty");
  Hooks& hooks = Instance();
  {
    const std::lock_guard lock(hooks.mutex);
    const auto last = std::find_if(hooks.all.rbegin(), hooks.all.rend(),
                                   [&](const Hook& hook) { return hook->thread == installed_->thread; });
    if (std::find(hooks.all.begin(), hooks.all.end(), installed_) == hooks.all.end()) {
      return absl::FailedPreconditionError("the allocator of TVM-FFI's tensors is uninstalled already");
    }
    if (installed_->thread != 0 && installed_->thread != ThreadNumber()) {
      return absl::FailedPreconditionError("an allocator of one thread's tensors is uninstalled on that thread");
    }
    if (*last != installed_) return NotOurs();
  }
  if (absl::Status restored = Restore(*installed_); !restored.ok()) return restored;
  TensorPool gone;  // let go of without the lock: its memory goes back
  const std::lock_guard lock(hooks.mutex);
  std::erase(hooks.all, installed_);
  std::swap(gone, installed_->pool);
  return absl::OkStatus();
}

}  // namespace packalloc
