#include "tools/load.h"

#include <zlib.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "lib/parse.h"
#include "packalloc/buffer.h"
#include "packalloc/copy.h"
#include "packalloc/model_file.h"
#include "packalloc/registry.h"

namespace packalloc {
namespace {

// Carries `crc` on over all bytes of a buffer, copied out piece by piece.
absl::StatusOr<uLong> Checksum(const BufferRef& ref, uLong crc) {
  constexpr std::size_t kPiece = std::size_t{8} << 20;
  const std::size_t total = ref.buffer.nbytes();
  const bool whole = !ref.allocator.supports_offset();
  std::vector<std::byte> piece(whole ? total : std::min(kPiece, total));
  for (std::size_t at = 0; at < total; at += piece.size()) {
    piece.resize(std::min(piece.size(), total - at));
    absl::StatusOr<AnyBuf> part = whole ? ref.buffer : ref.allocator.offset(ref.buffer, piece.size(), at);
    if (!part.ok()) return part.status();
    if (absl::Status copied = ref.allocator.copyout(absl::MakeSpan(piece), *part); !copied.ok()) return copied;
    crc = crc32_z(crc, reinterpret_cast<const Bytef*>(piece.data()), piece.size());
  }
  return crc;
}

// FAILED_PRECONDITION where copyout leaves its destination as it was: then there is nothing to compare.
absl::Status CheckKeepsBytes(const std::vector<CopyPair>& pairs) {
  const auto any =
      std::find_if(pairs.begin(), pairs.end(), [](const CopyPair& p) { return p.dest.buffer.nbytes() != 0; });
  if (any == pairs.end()) return absl::OkStatus();
  const BufferRef& ref = any->dest;
  for (const std::byte before : {std::byte{0x55}, std::byte{0xAA}}) {
    std::byte after = before;
    if (absl::Status copied = ref.allocator.copyout({&after, 1}, ref.buffer); !copied.ok()) return copied;
    if (after != before) return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat(ref.allocator.name(), " keeps no bytes: what is loaded onto it cannot be verified"));
}

absl::StatusOr<std::uint32_t> Verify(const ModelFile& model, const std::vector<CopyPair>& pairs) {
  uLong all = crc32_z(0, nullptr, 0);
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    absl::StatusOr<uLong> loaded = Checksum(pairs[i].dest, all);
    if (!loaded.ok()) return loaded.status();
    absl::StatusOr<uLong> file = Checksum(pairs[i].src, all);
    if (!file.ok()) return file.status();
    if (*loaded != *file) {
      return absl::DataLossError(
          absl::StrCat("what was loaded of the tensor ", Quoted(model.tensors[i].name), " differs from the file"));
    }
    all = *loaded;
  }
  return static_cast<std::uint32_t>(all);
}

DiskReadStats StatsOf(const ModelFile& model) {
  DiskReadStats all;
  for (const std::shared_ptr<DiskFile>& file : model.files) {
    const DiskReadStats one = file->stats();
    all.page_cache_bytes += one.page_cache_bytes;
    all.io_uring_bytes += one.io_uring_bytes;
    all.direct_bytes += one.direct_bytes;
    all.buffered_bytes += one.buffered_bytes;
    if (!one.direct_refused.empty()) all.direct_refused = one.direct_refused;
    if (!one.io_uring_refused.empty()) all.io_uring_refused = one.io_uring_refused;
  }
  return all;
}

}  // namespace

absl::StatusOr<LoadResult> Load(const std::string& path, std::string_view device, bool verify,
                                const std::function<bool(std::uint64_t done, std::uint64_t total)>& progress) {
  absl::StatusOr<ModelFile> model = OpenModel(path);
  if (!model.ok()) return model.status();
  absl::StatusOr<PackedAllocator> allocator = Open(device);
  if (!allocator.ok()) return allocator.status();

  std::vector<Buffer> buffers;
  std::vector<CopyPair> pairs;
  for (const ModelTensor& tensor : model->tensors) {
    buffers.emplace_back(*allocator, tensor.nbytes());
    absl::StatusOr<BufferRef> dest = buffers.back().ref();
    if (!dest.ok()) {
      return absl::Status(dest.status().code(), absl::StrCat("tensor ", Quoted(tensor.name), " of ", tensor.nbytes(),
                                                             " bytes: ", dest.status().message()));
    }
    pairs.push_back({*std::move(dest), tensor.source});
  }

  if (verify) {
    if (absl::Status can = CheckKeepsBytes(pairs); !can.ok()) return can;
  }
  LoadResult result{.device = std::string(device), .tensors = pairs.size()};
  const DiskReadStats headers = StatsOf(*model);
  const auto start = std::chrono::steady_clock::now();
  CopyAllOptions options;
  options.progress = progress;
  absl::StatusOr<CopyReport> copied = CopyAll(pairs, options);
  if (!copied.ok()) return copied.status();
  if (absl::Status done = allocator->synchronize(); !done.ok()) return done;
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  result.bytes = copied->bytes;
  result.path = copied->path;
  result.read = StatsOf(*model);
  result.read.page_cache_bytes -= headers.page_cache_bytes;
  result.read.buffered_bytes -= headers.buffered_bytes;
  result.read.io_uring_bytes -= headers.io_uring_bytes;
  result.read.direct_bytes -= headers.direct_bytes;
  if (verify) {
    absl::StatusOr<std::uint32_t> checksum = Verify(*model, pairs);
    if (!checksum.ok()) return checksum.status();
    result.checksum = *checksum;
  }
  return result;
}

}  // namespace packalloc
