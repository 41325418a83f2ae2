#include "lib/load_library.h"

#include <dlfcn.h>
#include <sys/stat.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/parse.h"

namespace packalloc {

absl::StatusOr<void*> LoadLibrary(const std::string& name) {
  struct stat found;
  if (name.find('/') != std::string::npos && stat(name.c_str(), &found) == 0 && !S_ISREG(found.st_mode)) {
    return absl::UnavailableError(absl::StrCat(Printable(name), " is not a regular file"));
  }
  void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) return library;
  const char* why = dlerror();
  return absl::UnavailableError(Printable(why == nullptr ? name : why));
}

}  // namespace packalloc
