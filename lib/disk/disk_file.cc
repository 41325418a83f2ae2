#include "packalloc/disk_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "lib/checked_math.h"
#include "lib/checks.h"
#include "lib/disk/disk_file_access.h"
#include "lib/disk/stream.h"
#include "lib/disk/system_calls.h"

namespace packalloc {
namespace {

// The kernel moves at most 2 GiB less a page in one call; smaller pieces keep it interruptible.
constexpr std::size_t kMostPerCall = std::size_t{1} << 30;

const char* KindOf(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISCHR(mode)) return "a character device";
  if (S_ISBLK(mode)) return "a block device";
  return "not a regular file";
}

}  // namespace

absl::StatusOr<std::shared_ptr<DiskFile>> DiskFile::Open(std::string path, const DiskOptions& options) {
  if (path.empty()) return absl::InvalidArgumentError("the path of the file is empty");
  if (path.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError("the path of the file holds a NUL byte");
  }
  if (options.staging_bytes == 0) return absl::InvalidArgumentError("DiskOptions::staging_bytes is 0");
  std::shared_ptr<DiskFile> file(new DiskFile);
  file->path_ = std::move(path);
  file->options_ = options;
  file->system_ = options.system ? options.system : DiskSystemCalls::Default();
  // O_NONBLOCK: opening a pipe must not wait for its writer.
  const int flags = (options.write ? O_RDWR | O_CREAT : O_RDONLY) | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  do {
    file->fd_ = file->system_->Open(file->path_.c_str(), flags, 0644);
  } while (file->fd_ < 0 && errno == EINTR);
  if (file->fd_ < 0) {
    const int error = errno;
    if (error == EISDIR) return absl::InvalidArgumentError(absl::StrCat(file->path_, " is a directory"));
    return absl::ErrnoToStatus(error, absl::StrCat("cannot open ", file->path_, options.write ? " for writing" : ""));
  }
  struct stat info {};
  if (file->system_->Fstat(file->fd_, &info) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot stat ", file->path_));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(file->path_, " is ", KindOf(info.st_mode), ", not a regular file"));
  }
  return file;
}

DiskFile::~DiskFile() {
  if (direct_fd_ >= 0) ::close(direct_fd_);
  if (fd_ >= 0) ::close(fd_);
}

absl::StatusOr<std::uint64_t> DiskFile::size() const {
  struct stat info {};
  if (system_->Fstat(fd_, &info) != 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot stat ", path_));
  return static_cast<std::uint64_t>(info.st_size);
}

absl::Status DiskFile::CheckRange(std::uint64_t offset, std::uint64_t nbytes) const {
  absl::StatusOr<std::uint64_t> have = size();
  if (!have.ok()) return have.status();
  if (InRange<std::uint64_t>(offset, nbytes, *have)) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat(path_, ": ", nbytes, " bytes at byte ", offset,
                                            " were asked for, but the file has ", *have, " bytes"));
}

bool DiskFile::SameFile(const DiskFile& other) const {
  if (this == &other) return true;
  struct stat mine {};
  struct stat theirs {};
  return system_->Fstat(fd_, &mine) == 0 && other.system_->Fstat(other.fd_, &theirs) == 0 &&
         mine.st_dev == theirs.st_dev && mine.st_ino == theirs.st_ino;
}

absl::Status DiskFile::Read(std::uint64_t offset, absl::Span<std::byte> dest) {
  StreamTarget target{.file = this, .offset = offset, .nbytes = dest.size(), .host = dest.data()};
  return StreamFromDisk(absl::MakeConstSpan(&target, 1), StreamOptions{.staging_bytes = options_.staging_bytes});
}

absl::Status DiskFile::Write(std::uint64_t offset, absl::Span<const std::byte> src) {
  if (!options_.write) {
    return absl::FailedPreconditionError(absl::StrCat(path_, " was opened for reading only (DiskOptions::write)"));
  }
  if (absl::Status inside = CheckRange(offset, src.size()); !inside.ok()) return inside;
  for (std::size_t done = 0; done < src.size();) {
    const std::size_t step = std::min(src.size() - done, kMostPerCall);
    const ssize_t wrote = system_->Pwrite(fd_, src.data() + done, step, offset + done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      const int error = wrote < 0 ? errno : EIO;
      const std::string what =
          absl::StrCat(path_, ": wrote ", done, " of ", src.size(), " bytes at byte ", offset, ": ", ErrorText(error));
      if (error == ENOSPC || error == EDQUOT) return absl::ResourceExhaustedError(what);
      return absl::DataLossError(what);
    }
    done += static_cast<std::size_t>(wrote);
  }
  return absl::OkStatus();
}

absl::Status DiskFile::GrowTo(std::uint64_t nbytes) {
  if (!options_.write) {
    return absl::FailedPreconditionError(absl::StrCat(path_, " was opened for reading only (DiskOptions::write)"));
  }
  absl::StatusOr<std::uint64_t> have = size();
  if (!have.ok()) return have.status();
  if (*have >= nbytes) return absl::OkStatus();
  int result = 0;
  do {
    result = system_->Ftruncate(fd_, nbytes);
  } while (result != 0 && errno == EINTR);
  if (result == 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(path_, ": cannot grow from ", *have, " to ", nbytes, " bytes: ", ErrorText(errno)));
}

DiskReadStats DiskFile::stats() const {
  const std::lock_guard lock(mutex_);
  return {page_cache_bytes_.load(),
          io_uring_bytes_.load(),
          direct_bytes_.load(),
          buffered_bytes_.load(),
          options_.direct ? direct_refused_ : "switched off by DiskOptions::direct",
          options_.io_uring ? io_uring_refused_ : "switched off by DiskOptions::io_uring"};
}

absl::Status CheckExtent(const DiskExtent& extent, std::uint64_t nbytes) {
  if (extent.file == nullptr) return absl::InvalidArgumentError("DISK: the extent has no file");
  return CheckCopy(extent.file->path(), nbytes, extent.nbytes);
}

int DiskFileAccess::DirectFd(DiskFile& file) {
  if (!file.options_.direct) return -1;
  const std::lock_guard lock(file.mutex_);
  if (!file.direct_refused_.empty()) return -1;
  if (!file.direct_tried_) {
    file.direct_tried_ = true;
    // Through /proc it is the file that is open here, whatever lies at the path by now.
    const std::string same = absl::StrCat("/proc/self/fd/", file.fd_);
    const std::size_t alignment = file.system_->DirectAlignment(file.fd_);
    constexpr std::size_t kPage = 4096;  // what staging memory is aligned to
    if (alignment == 0 || alignment > kPage) {
      file.direct_refused_ = alignment == 0 ? "the file system has no direct I/O for this file"
                                            : absl::StrCat("it needs an alignment of ", alignment, " bytes");
    } else if (file.direct_fd_ = file.system_->Open(same.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC, 0);
               file.direct_fd_ < 0) {
      file.direct_refused_ = absl::StrCat("refused at open: ", ErrorText(errno));
    } else {
      file.direct_alignment_ = alignment;
    }
  }
  return file.direct_fd_;
}

void DiskFileAccess::RefuseDirect(DiskFile& file, std::string why) {
  const std::lock_guard lock(file.mutex_);
  if (file.direct_refused_.empty()) file.direct_refused_ = std::move(why);
}

bool DiskFileAccess::UringAllowed(const DiskFile& file) {
  if (!file.options_.io_uring) return false;
  const std::lock_guard lock(file.mutex_);
  return file.io_uring_refused_.empty();
}

void DiskFileAccess::RefuseUring(DiskFile& file, std::string why) {
  const std::lock_guard lock(file.mutex_);
  if (file.io_uring_refused_.empty()) file.io_uring_refused_ = std::move(why);
}

void DiskFileAccess::Count(DiskFile& file, ReadWay way, std::uint64_t nbytes) {
  std::atomic<std::uint64_t>& counter = way == ReadWay::kPageCache ? file.page_cache_bytes_
                                        : way == ReadWay::kUring   ? file.io_uring_bytes_
                                        : way == ReadWay::kDirect  ? file.direct_bytes_
                                                                   : file.buffered_bytes_;
  counter.fetch_add(nbytes, std::memory_order_relaxed);
}

absl::Status DiskFileAccess::ReadRest(DiskFile& file, std::uint64_t offset, std::byte* to, std::size_t nbytes,
                                      std::size_t got) {
  while (got < nbytes) {
    const ssize_t read = file.system_->Pread(file.fd_, to + got, std::min(nbytes - got, kMostPerCall), offset + got);
    if (read < 0 && errno == EINTR) continue;
    if (read <= 0) return ReadError(file, offset, nbytes, got, read < 0 ? errno : 0);
    got += static_cast<std::size_t>(read);
  }
  return absl::OkStatus();
}

absl::Status DiskFileAccess::ReadError(const DiskFile& file, std::uint64_t offset, std::size_t nbytes, std::size_t got,
                                       int error) {
  const std::string what = absl::StrCat(file.path_, ": read ", got, " of ", nbytes, " bytes at byte ", offset, ": ");
  if (error == 0) {
    absl::StatusOr<std::uint64_t> size = file.size();
    return absl::OutOfRangeError(
        absl::StrCat(what, "the file ends there", size.ok() ? absl::StrCat(" (it has ", *size, " bytes now)") : ""));
  }
  return absl::DataLossError(absl::StrCat(what, ErrorText(error)));
}

}  // namespace packalloc
