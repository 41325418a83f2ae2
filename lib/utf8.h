// UTF-8, where text from elsewhere goes on to a terminal or to C.
#ifndef PACKALLOC_LIB_UTF8_H_
#define PACKALLOC_LIB_UTF8_H_

#include <cstddef>

#include "absl/strings/string_view.h"

namespace packalloc {

// The bytes of the character that `text` starts with; 0 where it starts with none, nor with a part of one.
std::size_t Utf8Length(absl::string_view text) noexcept;

}  // namespace packalloc

#endif  // PACKALLOC_LIB_UTF8_H_
