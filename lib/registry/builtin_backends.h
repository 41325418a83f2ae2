// The backends of this build. The table behind it is written by the build from backends/*/meson.build, so that a static
// library keeps them: nothing registers itself.
#ifndef PACKALLOC_LIB_REGISTRY_BUILTIN_BACKENDS_H_
#define PACKALLOC_LIB_REGISTRY_BUILTIN_BACKENDS_H_

#include <string>
#include <vector>

#include "packalloc/backend.h"

namespace packalloc::internal {

std::vector<Backend> BuiltinBackends();

// Stands for a backend that this build lacks: it lists itself as unavailable, and opening it says why.
Backend LeftOutBackend(const std::string& name, const std::string& why);

}  // namespace packalloc::internal

#endif  // PACKALLOC_LIB_REGISTRY_BUILTIN_BACKENDS_H_
