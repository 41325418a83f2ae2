#include "backends/cuda/driver.h"

#include <dlfcn.h>
#include <unistd.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "backends/cuda/error.h"
#include "lib/env.h"
#include "lib/fork_guard.h"
#include "lib/load_library.h"

namespace packalloc::internal {
namespace {

// cuDevicePrimaryCtxRelease_v2 is of 11.0.
constexpr int kOldestVersion = 11000;

std::string VersionText(int version) { return absl::StrCat(version / 1000, ".", version % 1000 / 10); }

template <typename Function>
bool Resolve(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

absl::Status CudaDriver::Load() {
  const std::string path = EnvString("PACKALLOC_LIBCUDA").value_or("libcuda.so.1");
  const absl::StatusOr<void*> library = LoadLibrary(path);
  if (!library.ok()) {
    return absl::UnavailableError(absl::StrCat("no CUDA driver: ", library.status().message(),
                                               " (install NVIDIA's driver, or set PACKALLOC_LIBCUDA)"));
  }
  const char* missing = nullptr;
#define PACKALLOC_CUDA_RESOLVE(name) \
  if (!Resolve(*library, #name, name) && missing == nullptr) missing = #name;
  PACKALLOC_CUDA_REQUIRED(PACKALLOC_CUDA_RESOLVE)
#undef PACKALLOC_CUDA_RESOLVE
#define PACKALLOC_CUDA_RESOLVE(name) Resolve(*library, #name, name);
  PACKALLOC_CUDA_OPTIONAL(PACKALLOC_CUDA_RESOLVE)
#undef PACKALLOC_CUDA_RESOLVE
  // The version first: an old driver lacks functions too, and its age is the better reason.
  if (cuDriverGetVersion != nullptr && Call(cuDriverGetVersion, &version_) == CUDA_SUCCESS && version_ != 0 &&
      version_ < kOldestVersion) {
    return absl::UnavailableError(absl::StrCat("the CUDA driver ", path, " is too old: it is of CUDA ",
                                               VersionText(version_), ", ", VersionText(kOldestVersion),
                                               " is the oldest that works"));
  }
  if (missing != nullptr) {
    return absl::UnavailableError(absl::StrCat("the CUDA driver ", path, " has no function ", missing));
  }
  if (const CUresult result = Call(cuInit, 0U); result != CUDA_SUCCESS) {
    return absl::UnavailableError(absl::StrCat(path, ": ", DescribeCudaError(*this, "cuInit", result)));
  }
  pid_ = getpid();
  return absl::OkStatus();
}

absl::StatusOr<const CudaDriver*> CudaDriver::Start() {
  auto* driver = new CudaDriver;
  absl::Status loaded = driver->Load();
  if (loaded.ok()) return driver;
  delete driver;
  return loaded;
}

absl::StatusOr<const CudaDriver*> CudaDriver::Get() {
  // Never destroyed: objects that were made before it may free buffers after main.
  const auto* driver = OnceUnlessForked<&CudaDriver::Start>();
  if (driver == nullptr || (driver->ok() && (**driver)->forked())) return ForkedChild();
  return *driver;
}

bool CudaDriver::forked() const { return getpid() != pid_; }

}  // namespace packalloc::internal
