// What tvm_ffi_test.py loads: the allocator's functions for ctypes. They answer 0 or a message.
#include <cstdint>
#include <string>

#include "packalloc/backends/cpu.h"
#include "packalloc/interop/tvm_ffi.h"
#include "packalloc/packed_allocator.h"

namespace {

packalloc::TvmFfiObjectAllocator objects;  // NOLINT(cert-err58-cpp)
std::string text;                          // NOLINT(cert-err58-cpp): what was answered last

const char* Answer(const absl::Status& status) {
  text = status.ok() ? "" : status.ToString();
  return text.c_str();
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) const char* Install(const char* library) {
  const auto packed = packalloc::Pack(packalloc::CpuAllocator());
  if (!packed.ok()) return Answer(packed.status());
  const auto installed = packalloc::InstallTvmFfiObjectAllocator(*packed, {.library = library});
  if (installed.ok()) objects = *installed;
  return Answer(installed.status());
}
__attribute__((visibility("default"))) int Probe() {
  const absl::StatusOr<bool> live = objects.Probe();
  return live.ok() ? static_cast<int>(*live) : -1;
}
__attribute__((visibility("default"))) std::uint64_t Allocations() { return objects.stats().allocations; }
__attribute__((visibility("default"))) std::uint64_t Live() { return objects.stats().live; }
__attribute__((visibility("default"))) std::uint64_t FromMalloc() { return objects.stats().malloc_allocations; }
__attribute__((visibility("default"))) const char* LeakReport() {
  text = objects.LeakReport();
  return text.c_str();
}
__attribute__((visibility("default"))) const char* Uninstall() { return Answer(objects.Uninstall()); }
}
