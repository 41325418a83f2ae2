// Where in the program a call came from, cheap to take and named only when somebody reads it.
#ifndef PACKALLOC_LIB_LAYERS_STACK_TRACE_H_
#define PACKALLOC_LIB_LAYERS_STACK_TRACE_H_

#include <cstddef>
#include <string>
#include <vector>

namespace packalloc {

// Return addresses, the innermost first.
using StackTrace = std::vector<void*>;

// Of the caller; at most `depth` frames, none for 0. Works without frame pointers. Thread-safe.
StackTrace TakeStackTrace(std::size_t depth);

// One name per frame, "(unknown)" where the program has no symbol for it; without the library's own frames at the top.
std::vector<std::string> NamesOf(const StackTrace& trace);

}  // namespace packalloc

#endif  // PACKALLOC_LIB_LAYERS_STACK_TRACE_H_
