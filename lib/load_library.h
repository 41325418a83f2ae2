// Libraries found at run time, which a user may have named.
#ifndef PACKALLOC_LIB_LOAD_LIBRARY_H_
#define PACKALLOC_LIB_LOAD_LIBRARY_H_

#include <string>

#include "absl/status/statusor.h"

namespace packalloc {

// dlopen's handle, which nobody needs to close; a name without a slash is searched for. UNAVAILABLE with the reason,
// also for a path that is no regular file: opening a pipe would wait for whoever writes into it.
absl::StatusOr<void*> LoadLibrary(const std::string& name);

}  // namespace packalloc

#endif  // PACKALLOC_LIB_LOAD_LIBRARY_H_
