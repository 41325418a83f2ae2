// Loads a model's weights onto a device by the library: the file streamed, staging bounded, progress shown.
//   example_load_weights [FILE [DEVICE]]     without FILE: a small model that it writes itself
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "packalloc/buffer.h"
#include "packalloc/copy.h"
#include "packalloc/model_file.h"
#include "packalloc/registry.h"

namespace {

// [snippet]
absl::Status LoadWeights(const std::string& path, const packalloc::PackedAllocator& device,
                         std::vector<packalloc::Buffer>& weights) {
  absl::StatusOr<packalloc::ModelFile> model = packalloc::OpenModel(path);
  if (!model.ok()) return model.status();
  std::vector<packalloc::CopyPair> pairs;
  for (const packalloc::ModelTensor& tensor : model->tensors) {
    packalloc::Buffer& buffer = weights.emplace_back(device, tensor.nbytes());
    absl::StatusOr<packalloc::BufferRef> dest = buffer.ref();  // allocates
    if (!dest.ok()) return dest.status();
    pairs.push_back({*dest, tensor.source});
  }
  packalloc::CopyAllOptions options;
  options.progress = [](std::uint64_t done, std::uint64_t total) {
    std::fprintf(stderr, "\r%3.0f %%", total == 0 ? 100.0 : 100.0 * static_cast<double>(done) / total);
    return true;  // false cancels
  };
  return packalloc::CopyAll(pairs, options).status();
}
// [/snippet]

// A safetensors file: the length of the header in 8 bytes, the header, the tensors' bytes.
std::string WriteSmallModel() {
  const std::string path = (std::filesystem::temp_directory_path() / "packalloc-example.safetensors").string();
  const std::string header = R"({"bias":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})";
  std::ofstream file(path, std::ios::binary);
  const std::uint64_t length = header.size();
  for (int i = 0; i < 8; ++i) file.put(static_cast<char>(length >> (8 * i) & 0xff));
  file << header << std::string(16, '\1');
  return path;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string path = argc > 1 ? argv[1] : WriteSmallModel();
  absl::StatusOr<packalloc::PackedAllocator> device = packalloc::Open(argc > 2 ? argv[2] : "CPU");
  std::vector<packalloc::Buffer> weights;
  const absl::Status loaded = device.ok() ? LoadWeights(path, *device, weights) : device.status();
  if (argc == 1) std::filesystem::remove(path);
  std::cout << '\n' << weights.size() << " tensors: " << loaded << '\n';
  return loaded.ok() ? 0 : 1;
}
