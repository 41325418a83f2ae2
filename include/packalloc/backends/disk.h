// DiskAllocator: a file as a device. The file is the memory: a buffer is an extent of it, copyout reads and copyin
// writes. What copy_from_disk and Copy take weights from.
//
//   absl::StatusOr<packalloc::Allocator<packalloc::DiskExtent>> disk = packalloc::DiskAllocator("model.bin");
//   absl::StatusOr<packalloc::DiskExtent> whole = disk->alloc(1 << 20, {});            // the file's first MiB
//   absl::StatusOr<packalloc::DiskExtent> tensor = disk->offset(*whole, 4096, 8192);   // 4 KiB at byte 8192
//   absl::Status loaded = gpu.copy_from_disk(buf, *tensor, tensor->nbytes);
//
// By name: Open("DISK:/path/model.bin"), or Open("DISK:/path", DiskOptions{.write = true}) to write.
#ifndef PACKALLOC_BACKENDS_DISK_H_
#define PACKALLOC_BACKENDS_DISK_H_

#include <string>

#include "absl/status/statusor.h"
#include "packalloc/allocator.h"
#include "packalloc/disk_file.h"

namespace packalloc {

// A record over the file at `path`, kept open by every copy of the record and every extent from it. Errors as
// DiskFile::Open. Follows tinygrad's DiskDevice.
//  - alloc(n) is the file's first n bytes, so two allocations alias; beyond the end of the file it is OUT_OF_RANGE, or,
//    with options.write, grows the file (RESOURCE_EXHAUSTED where the disk is full). Of the spec only `nolru` and
//    `alignment` can be had; the rest is INVALID_ARGUMENT.
//  - free releases nothing. copyout reads (errors as DiskFile::Read), copyin writes (FAILED_PRECONDITION without
//    options.write). transfer is there with options.write.
//  - addr: `value` names the file, `byte_offset` is the place in it.
absl::StatusOr<Allocator<DiskExtent>> DiskAllocator(std::string path, const DiskOptions& options = {});

}  // namespace packalloc

#endif  // PACKALLOC_BACKENDS_DISK_H_
