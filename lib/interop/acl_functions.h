// What a call of the AscendCL runtime answered, as a status.
#ifndef PACKALLOC_LIB_INTEROP_ACL_FUNCTIONS_H_
#define PACKALLOC_LIB_INTEROP_ACL_FUNCTIONS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "packalloc/interop/acl.h"

namespace packalloc::internal {

inline constexpr int kAclSuccess = 0;
inline constexpr int kAclInvalidParam = 100000;
inline constexpr int kAclBadAlloc = 200000;
inline constexpr int kAclMemoryAllocation = 207001;
inline constexpr int kAclInternalError = 500000;

// OK for 0. `call` begins the message, and what `acl` has to say of the thread's last call ends it. So it is to be
// asked right after that.
absl::Status AclStatus(const AclFunctions& acl, int code, absl::string_view call);

// The error of a table that lacks `names`: UNAVAILABLE if it is of a library, else INVALID_ARGUMENT. OK for no names.
absl::Status MissingAclFunctions(const AclFunctions& acl, const std::vector<std::string>& names);

}  // namespace packalloc::internal

#endif  // PACKALLOC_LIB_INTEROP_ACL_FUNCTIONS_H_
