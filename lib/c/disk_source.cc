#include "lib/c/disk_source.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "lib/c/last_error.h"
#include "lib/checked_math.h"
#include "lib/checks.h"
#include "packalloc/disk_file.h"

namespace packalloc {

DiskSource::DiskSource(const DiskExtent& extent)
    : extent_(extent), c_{sizeof(packalloc_disk_source), this, extent.nbytes, &DiskSource::Read} {}

packalloc_status DiskSource::Read(void* self, std::uint64_t offset, void* dest, std::size_t nbytes) {
  return Call([&]() -> absl::Status {
    auto& source = *static_cast<DiskSource*>(self);
    const DiskExtent& extent = source.extent_;
    const auto read = [&]() -> absl::Status {
      if (dest == nullptr && nbytes != 0) return absl::InvalidArgumentError("read: the destination is NULL");
      if (absl::Status fits = CheckView("the file's extent", nbytes, offset, extent.nbytes); !fits.ok()) return fits;
      if (extent.file == nullptr) return absl::InvalidArgumentError("the extent has no file");
      return extent.file->Read(extent.offset + offset, {static_cast<std::byte*>(dest), nbytes});
    };
    absl::Status status = read();
    if (!status.ok()) {
      const std::lock_guard<std::mutex> lock(source.mutex_);
      source.error_ = status;
    }
    return status;
  });
}

absl::Status DiskSource::Explain(const absl::Status& status) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return error_.code() == status.code() ? error_ : status;
}

const DiskExtent* DiskSource::ExtentOf(const packalloc_disk_source& source) {
  return source.read == &DiskSource::Read ? &static_cast<const DiskSource*>(source.self)->extent_ : nullptr;
}

absl::Status CopyFromSource(const PackedAllocator& allocator, const AnyBuf& dest, const packalloc_disk_source& source,
                            std::size_t nbytes) {
  constexpr std::size_t kChunk = std::size_t{4} << 20;
  if (nbytes > dest.nbytes()) return CheckCopy("copy_from_disk", nbytes, dest.nbytes());
  std::vector<std::byte> staging(allocator.supports_offset() ? std::min(nbytes, kChunk) : nbytes);
  for (std::size_t done = 0; done < nbytes; done += staging.size()) {
    const std::size_t now = std::min(staging.size(), nbytes - done);
    absl::Status read =
        StatusFromC(source.read(source.self, done, staging.data(), now), "copy_from_disk", "read", nullptr);
    if (!read.ok()) return read;
    const absl::Span<const std::byte> bytes(staging.data(), now);
    if (done == 0 && now == nbytes) return allocator.copyin(dest, bytes);
    absl::StatusOr<AnyBuf> part = allocator.offset(dest, now, done);
    if (!part.ok()) return part.status();
    if (absl::Status written = allocator.copyin(*part, bytes); !written.ok()) return written;
  }
  return absl::OkStatus();
}

}  // namespace packalloc
