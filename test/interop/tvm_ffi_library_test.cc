// Where TVM-FFI's functions are looked up, and which libraries are refused. This program is not linked to any.
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <string>

#include "packalloc/backends/cpu.h"
#include "packalloc/interop/tvm_ffi.h"
#include "packalloc/packed_allocator.h"
#include "packalloc/tensor/tensor_pool.h"

namespace packalloc {
namespace {

struct Answers {
  absl::Status objects;
  absl::Status tensors;
};

// Installs and uninstalls both.
Answers TryLibrary(const std::string& path) {
  const PackedAllocator cpu = *Pack(CpuAllocator());
  const auto objects = InstallTvmFfiObjectAllocator(cpu, {.library = path});
  const auto tensors = InstallTvmFfiTensorAllocator(*TensorPool::Make(cpu), {.library = path});
  return {objects.ok() ? objects->Uninstall() : objects.status(),
          tensors.ok() ? tensors->Uninstall() : tensors.status()};
}

bool Says(const absl::Status& status, absl::StatusCode code, const std::string& part) {
  CAPTURE(status.ToString());
  return status.code() == code && std::string(status.message()).find(part) != std::string::npos;
}

TEST_CASE("libraries that cannot be used say why") {
  for (const char* path : {"/nonexistent/libtvm_ffi.so", "/dev/null"}) {
    const Answers none = TryLibrary(path);
    CHECK(Says(none.objects, absl::StatusCode::kUnavailable, path));
    CHECK(Says(none.tensors, absl::StatusCode::kUnavailable, path));
  }
  const Answers other = TryLibrary("libc.so.6");
  CHECK(Says(other.objects, absl::StatusCode::kUnimplemented, "TVMFFIGetVersion"));
  CHECK(Says(other.tensors, absl::StatusCode::kUnimplemented, "TVMFFIGetVersion"));
  const Answers unknown = TryLibrary(TVM_FFI_0_2);
  CHECK(Says(unknown.objects, absl::StatusCode::kUnimplemented, "0.2.13"));
  CHECK(Says(unknown.tensors, absl::StatusCode::kUnimplemented, "0.2.13"));
  const Answers early = TryLibrary(TVM_FFI_WITHOUT_HOOK);  // which has tensors
  CHECK(Says(early.objects, absl::StatusCode::kUnimplemented, "TVMFFISetCustomAllocator"));
  CHECK(early.tensors.ok());
}

TEST_CASE("a library by its path; loaded by others with its symbols hidden; loaded with its symbols seen") {
  const Answers by_path = TryLibrary(FAKE_TVM_FFI);  // which stays loaded, hidden
  CHECK(by_path.objects.ok());
  CHECK(by_path.tensors.ok());
  REQUIRE(dlsym(RTLD_DEFAULT, "TVMFFIGetVersion") == nullptr);
  const Answers hidden = TryLibrary("");
  CHECK(hidden.objects.ok());
  CHECK(hidden.tensors.ok());
  REQUIRE(dlopen(FAKE_TVM_FFI, RTLD_NOW | RTLD_GLOBAL) != nullptr);
  REQUIRE(dlsym(RTLD_DEFAULT, "TVMFFIGetVersion") != nullptr);
  const Answers seen = TryLibrary("");
  CHECK(seen.objects.ok());
  CHECK(seen.tensors.ok());
}

}  // namespace
}  // namespace packalloc
