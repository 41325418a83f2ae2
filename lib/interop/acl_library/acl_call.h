// The edge of libpackalloc_acl: every function that answers an aclError is one AclCall, out of which no exception
// comes.
#ifndef PACKALLOC_LIB_INTEROP_ACL_LIBRARY_ACL_CALL_H_
#define PACKALLOC_LIB_INTEROP_ACL_LIBRARY_ACL_CALL_H_

#include <new>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/c/last_error.h"
#include "packalloc/c/acl.h"

namespace packalloc {

// Runs `body`, a function returning absl::Status, and keeps what went wrong as the thread's last error.
template <typename Body>
aclError AclCall(Body&& body) noexcept {
  bool host_memory_ran_out = false;
  const packalloc_status status = Call([&]() -> absl::Status {
    try {
      return body();
    } catch (const std::bad_alloc&) {
      host_memory_ran_out = true;
      throw;
    }
  });
  switch (status) {
    case PACKALLOC_OK:
      return ACL_SUCCESS;
    case PACKALLOC_RESOURCE_EXHAUSTED:
      return host_memory_ran_out ? ACL_ERROR_BAD_ALLOC : ACL_ERROR_RT_MEMORY_ALLOCATION;
    case PACKALLOC_INVALID_ARGUMENT:
    case PACKALLOC_OUT_OF_RANGE:
    case PACKALLOC_NOT_FOUND:
    case PACKALLOC_ALREADY_EXISTS:
    case PACKALLOC_FAILED_PRECONDITION:
    case PACKALLOC_UNAVAILABLE:
      return ACL_ERROR_INVALID_PARAM;
    default:
      return ACL_ERROR_INTERNAL_ERROR;
  }
}

inline absl::Status NullParameter(const char* name) {
  return absl::InvalidArgumentError(absl::StrCat("the parameter ", name, " is NULL"));
}

}  // namespace packalloc

#endif  // PACKALLOC_LIB_INTEROP_ACL_LIBRARY_ACL_CALL_H_
