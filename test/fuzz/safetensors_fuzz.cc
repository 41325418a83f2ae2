// Safetensors headers: whatever the text, a header that is accepted covers its bytes exactly, in order.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "packalloc/model_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 4) return 0;
  const std::uint64_t data_bytes = data[0] | std::uint64_t{data[1]} << 8 | std::uint64_t{data[2]} << 40;
  const std::string text(reinterpret_cast<const char*>(data + 3), size - 3);
  const absl::StatusOr<packalloc::SafetensorsHeader> header = packalloc::ParseSafetensorsHeader(text, data_bytes);
  if (!header.ok()) return 0;
  std::uint64_t covered = 0;
  for (const packalloc::SafetensorsEntry& entry : header->tensors) {
    if (entry.begin != covered || entry.end < entry.begin) std::abort();
    covered = entry.end;
  }
  if (covered != data_bytes) std::abort();
  return 0;
}
