#include "lib/layers/stack_trace.h"

#include <unwind.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "absl/debugging/symbolize.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace packalloc {
namespace {

struct Taking {
  StackTrace* trace;
  std::size_t depth;
};

_Unwind_Reason_Code TakeFrame(_Unwind_Context* context, void* argument) {
  auto* taking = static_cast<Taking*>(argument);
  if (taking->trace->size() == taking->depth) return _URC_END_OF_STACK;
  // The reserved capacity suffices: nothing is thrown through the unwinder.
  taking->trace->push_back(reinterpret_cast<void*>(_Unwind_GetIP(context)));
  return _URC_NO_REASON;
}

bool IsOwn(absl::string_view name) {
  constexpr std::array kOwn = {"std::",
                               "packalloc::TakeStackTrace",
                               "packalloc::Checker::",
                               "packalloc::PackedAllocator::",
                               "packalloc::Buffer::",
                               "packalloc::Typed<",
                               "packalloc::ApplyLayer",
                               "packalloc::internal::"};
  return std::any_of(kOwn.begin(), kOwn.end(), [&](const char* own) { return absl::StartsWith(name, own); });
}

}  // namespace

StackTrace TakeStackTrace(std::size_t depth) {
  constexpr std::size_t kOwnFrames = 12;  // about as many NamesOf leaves out
  StackTrace trace;
  if (depth == 0) return trace;
  trace.reserve(depth + kOwnFrames);
  Taking taking{&trace, depth + kOwnFrames};
  _Unwind_Backtrace(&TakeFrame, &taking);
  return trace;
}

std::vector<std::string> NamesOf(const StackTrace& trace) {
  std::vector<std::string> names;
  for (void* return_address : trace) {
    std::array<char, 512> name{};
    // The call lies before the address to which it returns.
    const void* call = return_address == nullptr ? nullptr : static_cast<const char*>(return_address) - 1;
    const bool known = absl::Symbolize(call, name.data(), static_cast<int>(name.size()));
    if (names.empty() && known && IsOwn(name.data())) continue;
    names.emplace_back(known ? name.data() : "(unknown)");
  }
  return names;
}

}  // namespace packalloc
