// The checks that every record makes on what it is asked, in one wording. `who` is the device's name, or the
// operation's, and begins the message.
#ifndef PACKALLOC_LIB_CHECKS_H_
#define PACKALLOC_LIB_CHECKS_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "packalloc/buffer_spec.h"

namespace packalloc {

// What alloc refuses on any device, INVALID_ARGUMENT: what ValidateSpec does; more than PTRDIFF_MAX bytes; an
// external_ptr that is not aligned as the spec says, whose bytes pass the end of the address space, or together with
// `zero`, which would overwrite what somebody else owns.
absl::Status CheckRequest(absl::string_view who, std::size_t nbytes, const BufferSpec& spec);

// INVALID_ARGUMENT unless free is given the size of the buffer.
absl::Status CheckFreeSize(absl::string_view who, std::size_t nbytes, std::size_t buffer_bytes);

// OUT_OF_RANGE unless the first `nbytes` of a buffer are inside it.
absl::Status CheckCopy(absl::string_view who, std::size_t nbytes, std::size_t buffer_bytes);

// OUT_OF_RANGE unless `nbytes` at `byte_offset` of a buffer are inside it.
absl::Status CheckView(absl::string_view who, std::size_t nbytes, std::size_t byte_offset, std::size_t buffer_bytes);

}  // namespace packalloc

#endif  // PACKALLOC_LIB_CHECKS_H_
