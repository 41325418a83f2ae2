// Loading a model's tensors onto a device, measured, and checked where that is asked.
#ifndef PACKALLOC_TOOLS_LOAD_H_
#define PACKALLOC_TOOLS_LOAD_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "packalloc/copy.h"
#include "packalloc/disk_file.h"

namespace packalloc {

struct LoadResult {
  std::string device;
  std::size_t tensors = 0;
  std::uint64_t bytes = 0;
  double seconds = 0;  // of copying; opening and allocating apart
  CopyPath path = CopyPath::kNothing;
  DiskReadStats read{};                     // of all files together, while loading
  std::optional<std::uint32_t> checksum{};  // CRC-32 of all tensors in order, where verified
};

// Loads every tensor of the model at `path` into a buffer of its own on `device`, and lets them go again. With `verify`
// the bytes are copied back and their CRC-32 compared, tensor by tensor, with the file's: DATA_LOSS, naming the tensor,
// where they differ; FAILED_PRECONDITION, with nothing loaded, on a device that keeps no bytes (NULL). `progress` as in
// CopyAllOptions. Errors as OpenModel, Open and CopyAll.
absl::StatusOr<LoadResult> Load(const std::string& path, std::string_view device, bool verify,
                                const std::function<bool(std::uint64_t done, std::uint64_t total)>& progress);

}  // namespace packalloc

#endif  // PACKALLOC_TOOLS_LOAD_H_
