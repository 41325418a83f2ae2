// What examples/tvm_ffi_from_python.py loads.
// [snippet]
#include <string>

#include "packalloc/interop/tvm_ffi.h"
#include "packalloc/registry.h"

// Answers NULL, or why not.
extern "C" __attribute__((visibility("default"))) const char* InstallPackalloc(const char* libtvm_ffi) {
  static std::string why;
  absl::StatusOr<packalloc::PackedAllocator> host = packalloc::Open("CPU");
  absl::Status status = host.status();
  if (status.ok()) status = packalloc::InstallTvmFfiObjectAllocator(*host, {.library = libtvm_ffi}).status();
  why = status.ToString();
  return status.ok() ? nullptr : why.c_str();
}
// [/snippet]
