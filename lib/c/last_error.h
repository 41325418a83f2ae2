// The edge of the C ABI: every C function is one Call, out of which no exception comes.
//
//   packalloc_status packalloc_close(packalloc_allocator* allocator) {
//     return Call([&] { return Allocators().Close(HandleOf(allocator)); });
//   }
#ifndef PACKALLOC_LIB_C_LAST_ERROR_H_
#define PACKALLOC_LIB_C_LAST_ERROR_H_

#include <exception>
#include <new>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "packalloc/c/types.h"

namespace packalloc {

// Keeps an error's message as this thread's last one, and gives the code. OK leaves the last error: what a caller
// cleans up before it looks at it does not wipe it out.
packalloc_status Report(const absl::Status& status) noexcept;
packalloc_status Report(absl::StatusCode code, absl::string_view message, absl::string_view more = "") noexcept;

const char* LastError() noexcept;

// Runs `body`, a function returning absl::Status.
template <typename Body>
packalloc_status Call(Body&& body) noexcept {
  try {
    return Report(body());
  } catch (const std::bad_alloc&) {
    return Report(absl::StatusCode::kResourceExhausted, "host memory ran out (std::bad_alloc)");
  } catch (const std::exception& error) {
    return Report(absl::StatusCode::kInternal, "an exception left a function of the allocator: ", error.what());
  } catch (...) {
    return Report(absl::StatusCode::kInternal,
                  "an exception that is no std::exception left a function of the allocator");
  }
}

// The status that a C function answered; INTERNAL for a number that is none. `who` begins the message; `said` is the
// function's own sentence, or null.
absl::Status StatusFromC(packalloc_status status, absl::string_view who, absl::string_view function, const char* said);

}  // namespace packalloc

#endif  // PACKALLOC_LIB_C_LAST_ERROR_H_
