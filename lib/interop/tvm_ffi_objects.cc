#include <memory>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "lib/interop/object_allocator.h"
#include "lib/interop/tvm_ffi_abi.h"
#include "lib/interop/tvm_ffi_library.h"
#include "lib/keep_loaded.h"
#include "packalloc/interop/tvm_ffi.h"

namespace packalloc {

namespace internal {

struct InstalledTvmFfiObjects {
  TvmFfiObjectFunctions library;
  ObjectAllocator* allocator;  // lives as long as the process
  tvm_ffi_abi::CustomAllocator* previous;
  bool installed = true;
};

}  // namespace internal

namespace {

absl::Status EmptyAllocator() { return absl::FailedPreconditionError("the TvmFfiObjectAllocator is empty"); }

absl::Status Set(const internal::TvmFfiObjectFunctions& library, tvm_ffi_abi::CustomAllocator* allocator) {
  const int code = library.set_custom_allocator(allocator);
  if (code == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("TVMFFISetCustomAllocator answered ", code));
}

}  // namespace

absl::StatusOr<TvmFfiObjectAllocator> InstallTvmFfiObjectAllocator(const PackedAllocator& packed,
                                                                   const TvmFfiObjectOptions& options) {
  absl::StatusOr<internal::TvmFfiObjectFunctions> library = internal::LoadTvmFfiObjects(options.library);
  if (!library.ok()) return library.status();
  absl::StatusOr<internal::ObjectAllocator*> allocator =
      internal::ObjectAllocator::Make(packed, options, library->error_set_raised_from_c_str);
  if (!allocator.ok()) return allocator.status();
  KeepLibraryLoaded();
  TvmFfiObjectAllocator handle;
  handle.installed_ = std::make_shared<internal::InstalledTvmFfiObjects>(
      internal::InstalledTvmFfiObjects{*library, *allocator, library->get_custom_allocator()});
  if (absl::Status set = Set(*library, (*allocator)->entry()); !set.ok()) return set;
  return handle;
}

absl::StatusOr<bool> TvmFfiObjectAllocator::Probe() const {
  if (installed_ == nullptr) return EmptyAllocator();
  const auto made = [&] { return installed_->allocator->made_by_this_thread(); };
  const std::uint64_t before = made();
  // Long enough not to be kept in the Any itself.
  constexpr std::string_view kText = "is this string on the heap?";
  const tvm_ffi_abi::ByteArray text{kText.data(), kText.size()};
  tvm_ffi_abi::Any string{};
  const int code = installed_->library.string_from_byte_array(&text, &string);
  if (code != 0 || string.type_index < tvm_ffi_abi::kFirstObjectType || string.object == nullptr) {
    return absl::InternalError(
        absl::StrCat("TVMFFIStringFromByteArray made no string object (it answered ", code, ")"));
  }
  const bool used = made() != before;
  installed_->library.object_dec_ref(string.object);
  return used;
}

TvmFfiObjectStats TvmFfiObjectAllocator::stats() const {
  return installed_ != nullptr ? installed_->allocator->stats() : TvmFfiObjectStats{};
}

std::string TvmFfiObjectAllocator::LeakReport() const {
  std::string report;
  for (const TvmFfiTypeStats& type : stats().types) {
    if (type.live == 0) continue;
    absl::StrAppend(&report, type.live, type.live == 1 ? " object" : " objects", " of ");
    if (type.type_index < 0) {
      absl::StrAppend(&report, "other types");
    } else {
      const tvm_ffi_abi::TypeInfo* info = installed_->library.get_type_info(type.type_index);
      absl::StrAppend(&report, "type ", type.type_index);
      if (info != nullptr) {
        absl::StrAppend(&report, " (", std::string(info->type_key.data, info->type_key.size), ")");
      }
    }
    absl::StrAppend(&report, type.live == 1 ? " holds " : " hold ", type.live_bytes, " bytes\n");
  }
  return report;
}

absl::Status TvmFfiObjectAllocator::Trim() const {
  return installed_ != nullptr ? installed_->allocator->Trim() : EmptyAllocator();
}

absl::Status TvmFfiObjectAllocator::Uninstall() const {
  if (installed_ == nullptr) return EmptyAllocator();
  if (!installed_->installed) {
    return absl::FailedPreconditionError("the allocator of TVM-FFI's objects is uninstalled already");
  }
  if (installed_->library.get_custom_allocator() != installed_->allocator->entry()) {
    return absl::FailedPreconditionError(
        "another allocator of TVM-FFI's objects has been installed since; it goes before this one, by the handle that "
        "its "
        "installation gave (where that was dropped, both stay until the process ends)");
  }
  if (absl::Status set = Set(installed_->library, installed_->previous); !set.ok()) return set;
  installed_->installed = false;
  return absl::OkStatus();
}

}  // namespace packalloc
