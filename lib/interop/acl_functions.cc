#include "lib/interop/acl_functions.h"

#include <dlfcn.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/env.h"

namespace packalloc {
namespace {

template <typename Function>
void Resolve(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
}

}  // namespace

absl::StatusOr<AclFunctions> LoadAclFunctions(const std::string& library) {
  const std::string path = library.empty() ? EnvString("PACKALLOC_LIBASCENDCL").value_or("libascendcl.so") : library;
  // Never closed: callbacks and registrations outlive whoever asked.
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = dlerror();
    return absl::UnavailableError(absl::StrCat("no ", path, ": ", why == nullptr ? "it cannot be loaded" : why,
                                               " (source CANN's set_env.sh, or set PACKALLOC_LIBASCENDCL)"));
  }
  AclFunctions acl;
  acl.library = path;
#define PACKALLOC_ACL_RESOLVE(name) Resolve(handle, #name, acl.name)
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
#undef PACKALLOC_ACL_RESOLVE
  return acl;
}

namespace internal {

absl::Status AclStatus(int code, absl::string_view call) {
  switch (code) {
    case kAclSuccess:
      return absl::OkStatus();
    case kAclInvalidParam:
      return absl::InvalidArgumentError(absl::StrCat(call, " answered ", code, ": a parameter is invalid"));
    case kAclBadAlloc:
      return absl::ResourceExhaustedError(absl::StrCat(call, " answered ", code, ": host memory ran out"));
    case kAclMemoryAllocation:
      return absl::ResourceExhaustedError(absl::StrCat(call, " answered ", code, ": device memory ran out"));
    default:
      return absl::InternalError(absl::StrCat(call, " answered the aclError ", code));
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
