// Output pointers of the C functions: never NULL, and NULL in them after an error.
#ifndef PACKALLOC_LIB_C_OUTPUTS_H_
#define PACKALLOC_LIB_C_OUTPUTS_H_

#include <utility>

#include "absl/status/status.h"
#include "lib/c/last_error.h"

namespace packalloc {

inline absl::Status NoOutput() { return absl::InvalidArgumentError("the output pointer is NULL"); }

// Call of a `body` that sets *out when it succeeds.
template <typename T, typename Body>
packalloc_status CallFor(T** out, Body&& body) noexcept {
  if (out == nullptr) return Call(NoOutput);
  *out = nullptr;
  return Call(std::forward<Body>(body));
}

}  // namespace packalloc

#endif  // PACKALLOC_LIB_C_OUTPUTS_H_
