#include "backends/opencl/api.h"

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "lib/env.h"
#include "lib/fork_guard.h"
#include "lib/load_library.h"

namespace packalloc::opencl {
namespace {

std::atomic<pid_t> started_in{0};
std::atomic<bool> exiting{false};

absl::StatusOr<Api> Load() {
  const std::string path = EnvString("PACKALLOC_LIBOPENCL").value_or("libOpenCL.so.1");
  // Never closed: drivers do not survive it.
  const absl::StatusOr<void*> library = LoadLibrary(path);
  if (!library.ok()) {
    return absl::UnavailableError(absl::StrCat("no OpenCL loader: ", library.status().message(),
                                               " (install an OpenCL ICD loader, or set PACKALLOC_LIBOPENCL)"));
  }
  Api api;
#define PACKALLOC_OPENCL_LOAD(name)                                                                       \
  api.name = reinterpret_cast<decltype(api.name)>(dlsym(*library, #name));                                \
  if (api.name == nullptr) {                                                                              \
    return absl::UnavailableError(                                                                        \
        absl::StrCat("the OpenCL loader ", path, " has no ", #name, " (OpenCL 1.2 or later is needed)")); \
  }
  PACKALLOC_OPENCL_ENTRY_POINTS(PACKALLOC_OPENCL_LOAD)
#undef PACKALLOC_OPENCL_LOAD

  started_in = getpid();
  // The loader loads its platforms here. An exit handler that is registered after theirs runs before theirs.
  cl_uint platforms = 0;
  api.clGetPlatformIDs(0, nullptr, &platforms);
  std::atexit([] { exiting = true; });
  return api;
}

absl::Status ForkedChild() {
  return absl::FailedPreconditionError(
      "OpenCL was used before this process was forked and does not work in the child; fork before the first use, or "
      "start a new program");
}

struct Kept {
  std::function<cl_int()> release;
  int attempts;
};
constexpr int kMaxAttempts = 4;

struct KeptReleases {
  std::mutex mutex;
  std::vector<Kept> list;
};
KeptReleases& Refused() {
  static KeptReleases& kept = *new KeptReleases;
  return kept;
}

void TryRelease(Kept kept) {
  if (kept.release() == CL_SUCCESS || ++kept.attempts == kMaxAttempts) return;
  KeptReleases& refused = Refused();
  const std::lock_guard lock(refused.mutex);
  refused.list.push_back(std::move(kept));
}

}  // namespace

absl::StatusOr<const Api*> LoadApi() {
  const absl::StatusOr<Api>* api = OnceUnlessForked<&Load>();
  if (api == nullptr) return ForkedChild();
  if (!api->ok()) return api->status();
  if (absl::Status usable = CheckUsable(); !usable.ok()) return usable;
  return &**api;
}

bool IsExiting() { return exiting.load(std::memory_order_relaxed); }

absl::Status CheckUsable() {
  if (IsExiting()) [[unlikely]] {
    return absl::FailedPreconditionError("OpenCL cannot be used any more: the process is exiting");
  }
  if (getpid() != started_in.load(std::memory_order_relaxed)) [[unlikely]]
    return ForkedChild();
  return absl::OkStatus();
}

void Release(std::function<cl_int()> release) {
  if (CheckUsable().ok()) TryRelease({std::move(release), 0});
}

void ReleaseKept() {
  std::vector<Kept> list;
  {
    KeptReleases& refused = Refused();
    const std::lock_guard lock(refused.mutex);
    list.swap(refused.list);
  }
  for (Kept& kept : list) TryRelease(std::move(kept));
}

}  // namespace packalloc::opencl
