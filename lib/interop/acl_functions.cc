#include "lib/interop/acl_functions.h"

#include <dlfcn.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/env.h"
#include "lib/load_library.h"

namespace packalloc {
namespace {

template <typename Function>
void Resolve(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
}

// A runtime's file, and where its functions are looked up.
struct Library {
  std::string path;
  void* handle;
};

absl::StatusOr<Library> OpenLibrary(const std::string& path) {
  // Never closed: callbacks and registrations outlive whoever asked.
  absl::StatusOr<void*> handle = LoadLibrary(path);
  if (handle.ok()) return Library{path, *handle};
  return absl::UnavailableError(absl::StrCat("no ", path, ": ", handle.status().message(),
                                             " (source CANN's set_env.sh, or set PACKALLOC_LIBASCENDCL)"));
}

absl::StatusOr<Library> FindLibrary(const std::string& named) {
  if (!named.empty()) return OpenLibrary(named);
  if (const auto set = EnvString("PACKALLOC_LIBASCENDCL")) return OpenLibrary(*set);
  const void* linked = dlsym(RTLD_DEFAULT, "aclrtSynchronizeStream");
  if (linked == nullptr) return OpenLibrary("libascendcl.so");
  Dl_info file{};
  return Library{dladdr(linked, &file) != 0 ? file.dli_fname : "of the program", RTLD_DEFAULT};
}

}  // namespace

absl::StatusOr<AclFunctions> LoadAclFunctions(const std::string& library) {
  absl::StatusOr<Library> found = FindLibrary(library);
  if (!found.ok()) return found.status();
  AclFunctions acl;
  acl.library = found->path;
#define PACKALLOC_ACL_RESOLVE(name) Resolve(found->handle, #name, acl.name)
  PACKALLOC_ACL_RESOLVE(aclrtAllocatorCreateDesc);
  PACKALLOC_ACL_RESOLVE(aclrtAllocatorDestroyDesc);
  PACKALLOC_ACL_RESOLVE(aclrtAllocatorSetObjToDesc);
  PACKALLOC_ACL_RESOLVE(aclrtAllocatorSetAllocFuncToDesc);
  PACKALLOC_ACL_RESOLVE(aclrtAllocatorSetAllocAdviseFuncToDesc);
  PACKALLOC_ACL_RESOLVE(aclrtAllocatorSetFreeFuncToDesc);
  PACKALLOC_ACL_RESOLVE(aclrtAllocatorSetGetAddrFromBlockFuncToDesc);
  PACKALLOC_ACL_RESOLVE(aclrtAllocatorRegister);
  PACKALLOC_ACL_RESOLVE(aclrtAllocatorUnregister);
  PACKALLOC_ACL_RESOLVE(aclrtAllocatorGetByStream);
  PACKALLOC_ACL_RESOLVE(aclrtSynchronizeStream);
  PACKALLOC_ACL_RESOLVE(aclrtStreamQuery);
  PACKALLOC_ACL_RESOLVE(aclrtMemcpy);
  PACKALLOC_ACL_RESOLVE(packalloc_acl_last_error);
  PACKALLOC_ACL_RESOLVE(packalloc_acl_address_is_pointer);
#undef PACKALLOC_ACL_RESOLVE
  return acl;
}

namespace internal {

absl::Status AclStatus(const AclFunctions& acl, int code, absl::string_view call) {
  if (code == kAclSuccess) return absl::OkStatus();
  const char* sentence = acl.packalloc_acl_last_error == nullptr ? "" : acl.packalloc_acl_last_error();
  const std::string why = *sentence == '\0' ? "" : absl::StrCat(": ", sentence);
  switch (code) {
    case kAclInvalidParam:
      return absl::InvalidArgumentError(absl::StrCat(call, " answered ", code, ": a parameter is invalid", why));
    case kAclBadAlloc:
      return absl::ResourceExhaustedError(absl::StrCat(call, " answered ", code, ": host memory ran out", why));
    case kAclMemoryAllocation:
      return absl::ResourceExhaustedError(absl::StrCat(call, " answered ", code, ": device memory ran out", why));
    default:
      return absl::InternalError(absl::StrCat(call, " answered the aclError ", code, why));
  }
}

absl::Status MissingAclFunctions(const AclFunctions& acl, const std::vector<std::string>& names) {
  if (names.empty()) return absl::OkStatus();
  const std::string list = absl::StrJoin(names, ", ");
  if (acl.library.empty()) return absl::InvalidArgumentError(absl::StrCat("the AclFunctions have no ", list));
  return absl::UnavailableError(
      absl::StrCat("the AscendCL library ", acl.library, " has no function ", list, "; it is of an older CANN"));
}

}  // namespace internal
}  // namespace packalloc
