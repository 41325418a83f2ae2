#include "lib/keep_loaded.h"

#include <dlfcn.h>

namespace packalloc {

void KeepLibraryLoaded() {
  static const bool kept = [] {
    Dl_info library{};
    if (dladdr(reinterpret_cast<const void*>(&KeepLibraryLoaded), &library) == 0) return false;
    // Fails for the program itself, which is not unloaded.
    return dlopen(library.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE) != nullptr;
  }();
  static_cast<void>(kept);
}

}  // namespace packalloc
