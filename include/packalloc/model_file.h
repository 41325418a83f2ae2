// OpenModel: which tensors a safetensors file, a sharded model (its *.index.json) or a raw file holds, each as a buffer
// of the DISK backend, for CopyAll to load straight into device memory.
//
//   absl::StatusOr<packalloc::ModelFile> model = packalloc::OpenModel("model.safetensors");
//   std::vector<packalloc::CopyPair> pairs;
//   for (const packalloc::ModelTensor& tensor : model->tensors) {
//     std::cout << tensor.name << ' ' << tensor.dtype << '\n';
//     pairs.push_back({{gpu, *gpu.alloc(tensor.nbytes())}, tensor.source});
//   }
//   absl::StatusOr<packalloc::CopyReport> loaded = packalloc::CopyAll(pairs);           // copy.h
#ifndef PACKALLOC_MODEL_FILE_H_
#define PACKALLOC_MODEL_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "packalloc/copy.h"
#include "packalloc/disk_file.h"

namespace packalloc {

struct ModelTensor {
  std::string name;                  // of a raw file: the file's own name
  std::string dtype;                 // as safetensors spells it: "F32", "BF16"; of a raw file "U8"
  std::vector<std::uint64_t> shape;  // row-major, in elements; empty for a scalar
  BufferRef source;                  // where its bytes lie; keeps the file open

  std::size_t nbytes() const { return source.buffer.nbytes(); }
  // The bytes' place, for copy_from_disk and statistics; of a tensor of zero bytes it has no file.
  const DiskExtent* extent() const { return source.buffer.get<DiskExtent>(); }
};

struct ModelFile {
  std::vector<ModelTensor> tensors;                           // in the order of their bytes, file by file
  std::vector<std::pair<std::string, std::string>> metadata;  // a safetensors file's __metadata__
  std::vector<std::shared_ptr<DiskFile>> files;               // one, or the shards
};

// Opens `path` as its name says: "*.index.json" a sharded model (shards lie beside it), "*.safetensors" a safetensors
// file, anything else a raw file of bytes. Reads headers only. Never more than 100 MB of header.
//
// INVALID_ARGUMENT, naming the file and the tensor, for a file that is not what it should be: a header that is not
// JSON or larger than the file, a duplicate name, an unknown dtype, a shape whose size overflows or disagrees with the
// bytes, bytes outside the file, overlapping or left over; in an index, a shard path that leaves the folder or a tensor
// that its shard lacks. Else as DiskFile::Open. Thread-safe. Format: huggingface/safetensors.
absl::StatusOr<ModelFile> OpenModel(const std::string& path, const DiskOptions& options = {});

// Parses the JSON text of a safetensors header, for a file of `data_bytes` bytes after the header; offsets in the
// result are relative to the end of the header. What OpenModel calls; here for tests and fuzzers.
struct SafetensorsEntry {
  std::string name;
  std::string dtype;
  std::vector<std::uint64_t> shape{};
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};
struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;  // by begin, then name
  std::vector<std::pair<std::string, std::string>> metadata;
};
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(const std::string& json, std::uint64_t data_bytes);

}  // namespace packalloc

#endif  // PACKALLOC_MODEL_FILE_H_
