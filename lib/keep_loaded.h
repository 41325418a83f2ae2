// For code of this library that others call back, at times of their own.
#ifndef PACKALLOC_LIB_KEEP_LOADED_H_
#define PACKALLOC_LIB_KEEP_LOADED_H_

namespace packalloc {

// From now on the shared library that holds this code, if it is in one, is not unloaded. Thread-safe.
void KeepLibraryLoaded();

}  // namespace packalloc

#endif  // PACKALLOC_LIB_KEEP_LOADED_H_
