#include "packalloc/backends/disk.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "lib/checks.h"
#include "packalloc/allocator.h"
#include "packalloc/buffer_spec.h"
#include "packalloc/disk_file.h"

namespace packalloc {
namespace {

constexpr std::size_t kTransferChunk = std::size_t{1} << 20;

absl::Status CheckDiskSpec(const DiskFile& file, const BufferSpec& spec) {
  const char* refused = spec.uncached       ? "uncached"
                        : spec.cpu_access   ? "cpu_access"
                        : spec.host         ? "host"
                        : spec.zero         ? "zero (it would overwrite the file)"
                        : spec.external_ptr ? "external_ptr"
                                            : nullptr;
  if (refused == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("DISK:", file.path(), " cannot give a buffer that is ", refused));
}

// As memmove: from the end backwards where the destination lies behind the source.
absl::Status MoveInFile(const DiskExtent& dest, const DiskExtent& src, std::size_t nbytes) {
  if (absl::Status fits = CheckExtent(dest, nbytes); !fits.ok()) return fits;
  if (absl::Status fits = CheckExtent(src, nbytes); !fits.ok()) return fits;
  if (dest.file == src.file && dest.offset == src.offset) return absl::OkStatus();
  std::vector<std::byte> chunk(std::min(nbytes, kTransferChunk));
  const bool backwards = dest.offset > src.offset;
  for (std::size_t done = 0; done < nbytes;) {
    const std::size_t step = std::min(nbytes - done, chunk.size());
    const std::size_t at = backwards ? nbytes - done - step : done;
    const absl::Span<std::byte> part = absl::MakeSpan(chunk).subspan(0, step);
    if (absl::Status read = src.file->Read(src.offset + at, part); !read.ok()) return read;
    if (absl::Status written = dest.file->Write(dest.offset + at, part); !written.ok()) return written;
    done += step;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Allocator<DiskExtent>> DiskAllocator(std::string path, const DiskOptions& options) {
  absl::StatusOr<std::shared_ptr<DiskFile>> opened = DiskFile::Open(std::move(path), options);
  if (!opened.ok()) return opened.status();
  std::shared_ptr<DiskFile> file = *std::move(opened);

  Allocator<DiskExtent> disk;
  disk.traits.name = absl::StrCat("DISK:", file->path());
  disk.traits.address_is_pointer = false;
  disk.alloc = [file](std::size_t nbytes, const BufferSpec& spec) -> absl::StatusOr<DiskExtent> {
    if (absl::Status valid = CheckRequest(file->path(), nbytes, spec); !valid.ok()) return valid;
    if (absl::Status can = CheckDiskSpec(*file, spec); !can.ok()) return can;
    if (file->options().write) {
      if (absl::Status grown = file->GrowTo(nbytes); !grown.ok()) return grown;
    } else if (absl::Status inside = file->CheckRange(0, nbytes); !inside.ok()) {
      return inside;
    }
    return DiskExtent{file, 0, nbytes};
  };
  disk.free = [file](const DiskExtent& extent, std::size_t nbytes, const BufferSpec&) -> absl::Status {
    if (extent.file == file) return CheckFreeSize(file->path(), nbytes, extent.nbytes);
    return absl::InvalidArgumentError(absl::StrCat("free: the extent is not of ", file->path()));
  };
  disk.copyin = [](const DiskExtent& dest, absl::Span<const std::byte> src) -> absl::Status {
    if (absl::Status fits = CheckExtent(dest, src.size()); !fits.ok()) return fits;
    return dest.file->Write(dest.offset, src);
  };
  disk.copyout = [](absl::Span<std::byte> dest, const DiskExtent& src) -> absl::Status {
    if (absl::Status fits = CheckExtent(src, dest.size()); !fits.ok()) return fits;
    return src.file->Read(src.offset, dest);
  };
  disk.addr = [](const DiskExtent& extent) {
    return DeviceAddress{reinterpret_cast<std::uintptr_t>(extent.file.get()), extent.offset};
  };
  disk.offset = [](const DiskExtent& extent, std::size_t nbytes,
                   std::size_t byte_offset) -> absl::StatusOr<DiskExtent> {
    if (extent.file == nullptr) return absl::InvalidArgumentError("DISK: the extent has no file");
    absl::Status inside = CheckView(extent.file->path(), nbytes, byte_offset, extent.nbytes);
    if (!inside.ok()) return inside;
    return DiskExtent{extent.file, extent.offset + byte_offset, nbytes};
  };
  if (options.write) disk.transfer = &MoveInFile;
  return disk;
}

}  // namespace packalloc
