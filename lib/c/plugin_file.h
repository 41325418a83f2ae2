// What a plugin's file says before any of it is loaded: reads the ELF file's own tables.
#ifndef PACKALLOC_LIB_C_PLUGIN_FILE_H_
#define PACKALLOC_LIB_C_PLUGIN_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace packalloc {

inline constexpr char kPluginVersionSymbol[] = "packalloc_plugin_abi_version";
inline constexpr char kPluginBackendSymbol[] = "packalloc_plugin_backend";

struct PluginFile {
  std::uint32_t abi_version = 0;
  bool has_backend = false;  // whether it defines the function packalloc_plugin_backend
};

// NOT_FOUND for no such file; INVALID_ARGUMENT, saying what it is instead, for one that is not a shared library of this
// machine, or that defines no version. Reads, whatever the bytes, nothing outside the file.
absl::StatusOr<PluginFile> ReadPluginFile(const std::string& path);

}  // namespace packalloc

#endif  // PACKALLOC_LIB_C_PLUGIN_FILE_H_
