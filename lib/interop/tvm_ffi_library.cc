#include "lib/interop/tvm_ffi_library.h"

#include <dlfcn.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/load_library.h"

namespace packalloc::internal {
namespace {

// One library: each function is looked up by its name, and what is missing is remembered.
class Symbols {
 public:
  static absl::StatusOr<Symbols> Open(const std::string& path) {
    Symbols symbols;
    // A library that Python has loaded with its symbols hidden is found by its soname, wherever its file is.
    if (!path.empty() || dlsym(RTLD_DEFAULT, "TVMFFIGetVersion") == nullptr) {
      const absl::StatusOr<void*> library = LoadLibrary(path.empty() ? "libtvm_ffi.so" : path);
      if (!library.ok()) {
        return absl::UnavailableError(
            absl::StrCat("TVM-FFI is not loaded and cannot be: ", library.status().message()));
      }
      symbols.handle_ = *library;
    }
    void (*get_version)(tvm_ffi_abi::Version*) = nullptr;
    symbols.Find("TVMFFIGetVersion", get_version);
    if (get_version == nullptr) return absl::UnimplementedError("the library given as TVM-FFI has no TVMFFIGetVersion");
    tvm_ffi_abi::Version version{};
    get_version(&version);
    symbols.version_ = absl::StrCat("TVM-FFI ", version.major, ".", version.minor, ".", version.patch);
    if (version.major != 0 || version.minor != 1) {
      return absl::UnimplementedError(absl::StrCat("this is ", symbols.version_, "; known is the ABI of 0.1"));
    }
    return symbols;
  }

  template <typename Function>
  void Find(const char* name, Function*& function) {
    function = reinterpret_cast<Function*>(dlsym(handle_, name));
    if (function == nullptr && missing_.empty()) missing_ = name;
  }

  absl::Status Complete() const {
    if (missing_.empty()) return absl::OkStatus();
    return absl::UnimplementedError(absl::StrCat(version_, " has no function ", missing_));
  }

 private:
  void* handle_ = RTLD_DEFAULT;
  std::string version_;
  std::string missing_;
};

}  // namespace

absl::StatusOr<TvmFfiObjectFunctions> LoadTvmFfiObjects(const std::string& path) {
  absl::StatusOr<Symbols> symbols = Symbols::Open(path);
  if (!symbols.ok()) return symbols.status();
  TvmFfiObjectFunctions functions{};
  symbols->Find("TVMFFISetCustomAllocator", functions.set_custom_allocator);
  symbols->Find("TVMFFIGetCustomAllocator", functions.get_custom_allocator);
  symbols->Find("TVMFFIErrorSetRaisedFromCStr", functions.error_set_raised_from_c_str);
  symbols->Find("TVMFFIGetTypeInfo", functions.get_type_info);
  symbols->Find("TVMFFIStringFromByteArray", functions.string_from_byte_array);
  symbols->Find("TVMFFIObjectDecRef", functions.object_dec_ref);
  if (absl::Status complete = symbols->Complete(); !complete.ok()) return complete;
  return functions;
}

absl::StatusOr<TvmFfiTensorFunctions> LoadTvmFfiTensors(const std::string& path) {
  absl::StatusOr<Symbols> symbols = Symbols::Open(path);
  if (!symbols.ok()) return symbols.status();
  TvmFfiTensorFunctions functions{};
  symbols->Find("TVMFFIEnvSetDLPackManagedTensorAllocator", functions.env_set_dlpack_managed_tensor_allocator);
  symbols->Find("TVMFFIEnvGetDLPackManagedTensorAllocator", functions.env_get_dlpack_managed_tensor_allocator);
  if (absl::Status complete = symbols->Complete(); !complete.ok()) return complete;
  return functions;
}

}  // namespace packalloc::internal
