#include "packalloc/any_buf.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <typeinfo>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace packalloc::internal {
namespace {

std::string ReadableName(const std::type_info& type) {
  int failed = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(abi::__cxa_demangle(type.name(), nullptr, nullptr, &failed),
                                                         &std::free);
  return failed == 0 && name != nullptr ? name.get() : type.name();
}

}  // namespace

bool SameTypeInfo(const BufType* a, const BufType* b) { return a != nullptr && b != nullptr && *a->info == *b->info; }

absl::Status WrongType(const AnyBuf& buf, const std::type_info& wanted) {
  if (buf.empty()) return absl::InvalidArgumentError("the buffer handle is empty (default-constructed or moved from)");
  return absl::InvalidArgumentError(absl::StrCat("the buffer's handle is not a ", ReadableName(wanted)));
}

}  // namespace packalloc::internal
