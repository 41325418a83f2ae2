#include "packalloc/model_file.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "lib/model/json.h"
#include "lib/parse.h"
#include "packalloc/backends/disk.h"
#include "packalloc/copy.h"
#include "packalloc/disk_file.h"
#include "packalloc/packed_allocator.h"

namespace packalloc {
namespace {

constexpr std::uint64_t kMostHeader = 100'000'000;  // the format's own bound
constexpr std::size_t kLengthBytes = 8;

absl::Status In(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

// Of a shard, whose name is the file's.
absl::Status InIndex(const std::string& path, const absl::Status& shard) {
  return absl::Status(shard.code(), absl::StrCat(path, ": ", Printable(shard.message())));
}

// A file as one buffer of the DISK backend, of which tensors are views.
struct WholeFile {
  PackedAllocator allocator;
  AnyBuf buffer;
  std::shared_ptr<DiskFile> file;
};

absl::StatusOr<WholeFile> OpenWhole(const std::string& path, const DiskOptions& options) {
  absl::StatusOr<Allocator<DiskExtent>> record = DiskAllocator(path, options);
  if (!record.ok()) return record.status();
  absl::StatusOr<DiskExtent> nothing = record->alloc(0, {});
  if (!nothing.ok()) return nothing.status();
  absl::StatusOr<std::uint64_t> size = nothing->file->size();
  if (!size.ok()) return size.status();
  absl::StatusOr<PackedAllocator> packed = Pack(*std::move(record));
  if (!packed.ok()) return packed.status();
  absl::StatusOr<AnyBuf> buffer = packed->alloc(*size);
  if (!buffer.ok()) return buffer.status();
  return WholeFile{*std::move(packed), *std::move(buffer), nothing->file};
}

absl::StatusOr<std::string> ReadText(DiskFile& file, std::uint64_t offset, std::uint64_t nbytes) {
  std::string text(nbytes, '\0');
  absl::Status read = file.Read(offset, {reinterpret_cast<std::byte*>(text.data()), text.size()});
  if (!read.ok()) return read;
  return text;
}

absl::StatusOr<ModelFile> OpenSafetensors(const std::string& path, const DiskOptions& options) {
  absl::StatusOr<WholeFile> whole = OpenWhole(path, options);
  if (!whole.ok()) return whole.status();
  const std::uint64_t size = whole->buffer.nbytes();
  if (size < kLengthBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", size, " bytes are too few for a safetensors file"));
  }
  absl::StatusOr<std::string> prefix = ReadText(*whole->file, 0, kLengthBytes);
  if (!prefix.ok()) return prefix.status();
  std::uint64_t header_bytes = 0;  // little-endian in the file
  for (std::size_t i = kLengthBytes; i-- > 0;)
    header_bytes = header_bytes << 8 | static_cast<unsigned char>((*prefix)[i]);
  if (header_bytes > kMostHeader || header_bytes > size - kLengthBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": its header claims ", header_bytes, " bytes; the file has ",
                                                   size, " and the format allows ", kMostHeader));
  }
  absl::StatusOr<std::string> text = ReadText(*whole->file, kLengthBytes, header_bytes);
  if (!text.ok()) return text.status();
  const std::uint64_t data = kLengthBytes + header_bytes;
  absl::StatusOr<SafetensorsHeader> header = ParseSafetensorsHeader(*text, size - data);
  if (!header.ok()) return In(path, header.status());
  ModelFile model{.tensors = {}, .metadata = std::move(header->metadata), .files = {whole->file}};
  for (SafetensorsEntry& entry : header->tensors) {
    absl::StatusOr<AnyBuf> view = whole->allocator.offset(whole->buffer, entry.end - entry.begin, data + entry.begin);
    if (!view.ok()) return In(path, view.status());
    model.tensors.push_back({std::move(entry.name), std::move(entry.dtype), std::move(entry.shape),
                             BufferRef{whole->allocator, *std::move(view)}});
  }
  return model;
}

absl::StatusOr<ModelFile> OpenIndex(const std::string& path, const DiskOptions& options) {
  absl::StatusOr<std::shared_ptr<DiskFile>> file = DiskFile::Open(path, options);
  if (!file.ok()) return file.status();
  absl::StatusOr<std::uint64_t> size = (*file)->size();
  if (!size.ok()) return size.status();
  if (*size > kMostHeader) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", *size, " bytes are too many for an index"));
  }
  absl::StatusOr<std::string> text = ReadText(**file, 0, *size);
  if (!text.ok()) return text.status();
  absl::StatusOr<nlohmann::json> index = ParseJson(*text);
  if (!index.ok()) return In(path, index.status());
  const auto map = index->is_object() ? index->find("weight_map") : index->end();
  if (!index->is_object() || map == index->end() || !map->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": it has no weight_map"));
  }
  std::map<std::string, std::set<std::string>> shards;  // file name: its tensors
  for (const auto& [tensor, shard] : map->items()) {
    if (!shard.is_string()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": the shard of ", Quoted(tensor), " is not a file name"));
    }
    const auto& name = shard.get_ref<const std::string&>();
    if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": the shard ", Quoted(name), " of ", Quoted(tensor), " is not a file beside the index"));
    }
    shards[name].insert(tensor);
  }
  const std::string folder = path.substr(0, path.rfind('/') + 1);
  ModelFile model;
  for (auto& [name, wanted] : shards) {
    absl::StatusOr<ModelFile> shard = OpenSafetensors(folder + name, options);
    if (!shard.ok()) return InIndex(path, shard.status());
    for (ModelTensor& tensor : shard->tensors) {
      if (wanted.erase(tensor.name) == 1) model.tensors.push_back(std::move(tensor));
    }
    if (!wanted.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": the shard ", Quoted(name), " has no tensor ", Quoted(*wanted.begin())));
    }
    model.files.push_back(shard->files[0]);
    model.metadata.insert(model.metadata.end(), shard->metadata.begin(), shard->metadata.end());
  }
  return model;
}

absl::StatusOr<ModelFile> OpenRaw(const std::string& path, const DiskOptions& options) {
  absl::StatusOr<WholeFile> whole = OpenWhole(path, options);
  if (!whole.ok()) return whole.status();
  ModelFile model{.tensors = {}, .metadata = {}, .files = {whole->file}};
  model.tensors.push_back(
      {path.substr(path.rfind('/') + 1), "U8", {whole->buffer.nbytes()}, BufferRef{whole->allocator, whole->buffer}});
  return model;
}

}  // namespace

absl::StatusOr<ModelFile> OpenModel(const std::string& path, const DiskOptions& options) {
  if (absl::EndsWith(path, ".index.json")) return OpenIndex(path, options);
  if (absl::EndsWith(path, ".safetensors")) return OpenSafetensors(path, options);
  return OpenRaw(path, options);
}

}  // namespace packalloc
