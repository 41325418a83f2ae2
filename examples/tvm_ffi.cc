// The code of docs/interop/tvm_ffi.md:  example_tvm_ffi [PATH OF libtvm_ffi.so]. Without one it says so, and succeeds.
#include "packalloc/interop/tvm_ffi.h"

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

#include "packalloc/registry.h"
#include "packalloc/tensor/tensor_pool.h"

namespace {

int failures = 0;
void Expect(bool condition, const char* what) {
  if (condition) return;
  std::printf("not true: %s\n", what);
  ++failures;
}

void WorkWithTvm() {}

absl::Status Objects(const std::string& path) {
  // [snippet objects]
  absl::StatusOr<packalloc::PackedAllocator> host = packalloc::Open("CPU");
  if (!host.ok()) return host.status();
  absl::StatusOr<packalloc::TvmFfiObjectAllocator> objects =
      packalloc::InstallTvmFfiObjectAllocator(*host, {.library = path});  // without a path: the one in the process
  if (!objects.ok()) return objects.status();
  absl::StatusOr<bool> used = objects->Probe();
  if (!used.ok()) return used.status();
  std::cout << (*used ? "libtvm_ffi.so's objects come from the slabs\n" : "libtvm_ffi.so makes its objects itself\n");
  // [/snippet objects]

  // [snippet leaks]
  const packalloc::TvmFfiObjectStats before = objects->stats();
  WorkWithTvm();
  if (objects->stats().live > before.live) std::cout << objects->LeakReport();
  if (absl::Status trimmed = objects->Trim(); !trimmed.ok()) return trimmed;
  // [/snippet leaks]
  Expect(objects->stats().live == before.live, "nothing leaked");
  Expect(objects->stats().slabs == 0, "all is given back");

  // [snippet uninstall]
  if (absl::Status uninstalled = objects->Uninstall(); !uninstalled.ok()) return uninstalled;
  // [/snippet uninstall]
  return absl::OkStatus();
}

absl::Status Limited(const std::string& path) {
  packalloc::PackedAllocator host = *packalloc::Open("CPU+limited:max_bytes=64MiB");
  // [snippet limited]
  packalloc::TvmFfiObjectOptions options{.malloc_fallback = false, .library = path};
  options.out_of_memory = packalloc::TvmFfiOutOfMemory::kThrowBadAlloc;
  absl::StatusOr<packalloc::TvmFfiObjectAllocator> objects = packalloc::InstallTvmFfiObjectAllocator(host, options);
  // [/snippet limited]
  if (!objects.ok()) return objects.status();
  return objects->Uninstall();
}

absl::Status Tensors(const std::string& path) {
  // [snippet tensors]
  absl::StatusOr<packalloc::PackedAllocator> device = packalloc::Open("CPU");
  if (!device.ok()) return device.status();
  absl::StatusOr<packalloc::TensorPool> pool = packalloc::TensorPool::Make(*device);
  if (!pool.ok()) return pool.status();
  absl::StatusOr<packalloc::TvmFfiTensorAllocator> tensors =
      packalloc::InstallTvmFfiTensorAllocator(*pool, {.library = path});
  if (!tensors.ok()) return tensors.status();
  // ... kernels call TVMFFIEnvTensorAlloc, or tvm::ffi::Tensor::FromEnvAlloc ...
  if (absl::Status uninstalled = tensors->Uninstall(); !uninstalled.ok()) return uninstalled;
  // [/snippet tensors]

  // [snippet thread]
  absl::StatusOr<packalloc::TvmFfiTensorAllocator> of_this_thread =
      packalloc::InstallTvmFfiTensorAllocator(*pool, {.this_thread_only = true, .library = path});
  // [/snippet thread]
  return of_this_thread.ok() ? of_this_thread->Uninstall() : of_this_thread.status();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string path = argc > 1 ? argv[1] : "";
  absl::Status status = Objects(path);
  if (path.empty() && absl::IsUnavailable(status)) {
    std::cout << status.message() << '\n';
    return EXIT_SUCCESS;
  }
  status.Update(Limited(path));
  status.Update(Tensors(path));
  if (!status.ok()) std::cout << status << '\n';
  return status.ok() && failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
