// The library's version, from the build.
#ifndef PACKALLOC_LIB_C_VERSION_H_
#define PACKALLOC_LIB_C_VERSION_H_

namespace packalloc {

const char* Version();

}  // namespace packalloc

#endif  // PACKALLOC_LIB_C_VERSION_H_
