// LoadPlugin: a backend from a shared library of its own, written against packalloc/c/plugin.h in C or in anything that
// speaks C. Its devices are then opened by name like any other's.
//
//   absl::Status loaded = packalloc::LoadPlugin("/opt/npu/libnpu_packalloc.so");
//   absl::StatusOr<packalloc::PackedAllocator> npu = packalloc::Open("NPU:0+lru");
//   absl::StatusOr<void*> queue = packalloc::Find<packalloc::NativeHandles>(*npu)->Get("npu.queue");   // c_record.h
//
// Or without a line of code: PACKALLOC_PLUGINS=/opt/npu/libnpu_packalloc.so:/opt/b.so ./program. They are loaded when
// the registry is first used; one that cannot be loaded is a warning on stderr, and a program with more rights than its
// user (set-user-ID) ignores the variable.
#ifndef PACKALLOC_PLUGIN_H_
#define PACKALLOC_PLUGIN_H_

#include <string>

#include "absl/status/status.h"

namespace packalloc {

// Loads the shared library at `path` (a file, never searched for) and registers its backend. The file is examined
// before it is loaded: of one that is not a library of this machine, or of another plugin ABI version, no code runs. A
// plugin that was loaded stays until the process ends, so its code is there for every buffer. Thread-safe.
//
// Every error names the path and both plugin ABI versions (the plugin's where it is known). NOT_FOUND for no such file;
// INVALID_ARGUMENT for one that is not a shared library of this machine's architecture, lacks one of the two symbols,
// or whose backend is malformed (its struct_size, its name, no `open`); FAILED_PRECONDITION for another version, one
// that the dynamic linker refuses, or that gives no backend; ALREADY_EXISTS for a backend's name that is taken.
absl::Status LoadPlugin(const std::string& path);

}  // namespace packalloc

#endif  // PACKALLOC_PLUGIN_H_
