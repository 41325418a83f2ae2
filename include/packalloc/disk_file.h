// DiskFile: a file opened once and read whole, by the fastest way the system allows: from the page cache where its
// pages are, else by io_uring direct I/O, direct pread or plain pread, in that order. What copy_from_disk, the DISK
// backend and Copy read through.
//
//   absl::StatusOr<std::shared_ptr<packalloc::DiskFile>> file = packalloc::DiskFile::Open("model.safetensors");
//   std::vector<std::byte> header(8);
//   absl::Status read = (*file)->Read(0, absl::MakeSpan(header));          // all eight bytes, or an error
//   packalloc::DiskExtent weights{*file, 4096, 1 << 20};                   // a source for copy_from_disk
//   absl::Status loaded = device.copy_from_disk(buf, weights, weights.nbytes);
//   packalloc::DiskReadStats how = (*file)->stats();                       // bytes by each way, and why no faster one
#ifndef PACKALLOC_DISK_FILE_H_
#define PACKALLOC_DISK_FILE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "packalloc/allocator.h"

namespace packalloc {

class DiskSystemCalls;  // lib/disk/system_calls.h: where tests put faults

struct DiskOptions {
  bool write = false;                                 // open for writing too; creates the file if there is none
  bool direct = true;                                 // direct I/O for what is not in the page cache
  bool io_uring = true;                               // io_uring for direct I/O, where the kernel allows it
  std::size_t staging_bytes = std::size_t{64} << 20;  // at most this much memory between the file and a device
  std::shared_ptr<DiskSystemCalls> system{};          // null: the operating system's own calls
};

// How a file was read so far. Snapshot.
struct DiskReadStats {
  std::uint64_t page_cache_bytes = 0;  // was in the page cache
  std::uint64_t io_uring_bytes = 0;    // direct I/O through io_uring
  std::uint64_t direct_bytes = 0;      // direct I/O by pread
  std::uint64_t buffered_bytes = 0;    // plain pread of what was not in the page cache
  std::string direct_refused;          // why direct I/O is not used; empty while it is
  std::string io_uring_refused;        // why io_uring is not used; empty while it is
};

// Thread-safe. The file is held by its descriptor: renaming, unlinking or replacing the path changes nothing.
class DiskFile {
 public:
  // Opens a regular file; never changes it, except that with options.write a missing one is created (empty).
  // NOT_FOUND, PERMISSION_DENIED, or INVALID_ARGUMENT for a directory, a pipe or another special file.
  static absl::StatusOr<std::shared_ptr<DiskFile>> Open(std::string path, const DiskOptions& options = {});
  ~DiskFile();
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;

  const std::string& path() const { return path_; }
  const DiskOptions& options() const { return options_; }

  // Bytes, as the file system says now.
  absl::StatusOr<std::uint64_t> size() const;

  // Fills `dest` from byte `offset` on, whole, or: OUT_OF_RANGE with the bytes wanted and got where the file is too
  // short (also where it shrinks meanwhile), DATA_LOSS for an I/O error. After an error the bytes of `dest` are
  // undefined; nothing outside it is written. Zero bytes inside or at the end of the file: OK.
  absl::Status Read(std::uint64_t offset, absl::Span<std::byte> dest);

  // Writes all of `src` at `offset`, which must lie inside the file (OUT_OF_RANGE). FAILED_PRECONDITION for a file that
  // was not opened for writing; RESOURCE_EXHAUSTED where the disk is full.
  absl::Status Write(std::uint64_t offset, absl::Span<const std::byte> src);

  // Makes the file at least `nbytes` long (zeros). FAILED_PRECONDITION as Write, RESOURCE_EXHAUSTED where it cannot.
  absl::Status GrowTo(std::uint64_t nbytes);

  DiskReadStats stats() const;

  // OK if bytes [offset, offset + nbytes) are inside the file now, else OUT_OF_RANGE as Read.
  absl::Status CheckRange(std::uint64_t offset, std::uint64_t nbytes) const;

  // Whether both are the same file, however it was opened.
  bool SameFile(const DiskFile& other) const;

 private:
  friend class DiskFileAccess;
  DiskFile() = default;

  std::string path_;
  DiskOptions options_;
  std::shared_ptr<DiskSystemCalls> system_;
  int fd_ = -1;
  std::size_t direct_alignment_ = 4096;  // of offset, length and memory

  mutable std::mutex mutex_;  // guards what follows
  int direct_fd_ = -1;
  bool direct_tried_ = false;
  std::string direct_refused_;
  std::string io_uring_refused_;
  std::atomic<std::uint64_t> page_cache_bytes_{0};
  std::atomic<std::uint64_t> io_uring_bytes_{0};
  std::atomic<std::uint64_t> direct_bytes_{0};
  std::atomic<std::uint64_t> buffered_bytes_{0};
};

// For backends: OK if the first `nbytes` of `extent` can be asked for; INVALID_ARGUMENT where it has no file,
// OUT_OF_RANGE where it is shorter.
absl::Status CheckExtent(const DiskExtent& extent, std::uint64_t nbytes);

}  // namespace packalloc

#endif  // PACKALLOC_DISK_FILE_H_
