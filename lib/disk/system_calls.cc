#include "lib/disk/system_calls.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#ifdef PACKALLOC_HAVE_LIBURING
#include <liburing.h>
#endif

namespace packalloc {
namespace {

// cachestat(2), Linux 6.5; the headers of Debian 12 do not have it yet.
constexpr long kCachestatNumber = 451;
struct CachestatRange {
  std::uint64_t offset;
  std::uint64_t length;
};
struct Cachestat {
  std::uint64_t cached;
  std::uint64_t dirty;
  std::uint64_t writeback;
  std::uint64_t evicted;
  std::uint64_t recently_evicted;
};

// Reads single bytes without waiting for the disk: what comes is cached.
std::optional<double> SampleCache(int fd, std::uint64_t offset, std::uint64_t nbytes) {
  constexpr int kSamples = 16;
  int cached = 0;
  for (int i = 0; i < kSamples; ++i) {
    char byte = 0;
    const iovec to{&byte, 1};
    const auto at = static_cast<off_t>(offset + nbytes / kSamples * static_cast<unsigned>(i));
    if (preadv2(fd, &to, 1, at, RWF_NOWAIT) == 1) {
      ++cached;
    } else if (errno == EOPNOTSUPP) {
      return std::nullopt;
    }
  }
  return static_cast<double>(cached) / kSamples;
}

}  // namespace

int DiskSystemCalls::Open(const char* path, int flags, mode_t mode) { return ::open(path, flags, mode); }

ssize_t DiskSystemCalls::Pread(int fd, void* to, std::size_t nbytes, std::uint64_t offset) {
  return ::pread(fd, to, nbytes, static_cast<off_t>(offset));
}

ssize_t DiskSystemCalls::Pwrite(int fd, const void* from, std::size_t nbytes, std::uint64_t offset) {
  return ::pwrite(fd, from, nbytes, static_cast<off_t>(offset));
}

int DiskSystemCalls::Fstat(int fd, struct stat* out) { return ::fstat(fd, out); }

int DiskSystemCalls::Ftruncate(int fd, std::uint64_t nbytes) { return ::ftruncate(fd, static_cast<off_t>(nbytes)); }

std::optional<double> DiskSystemCalls::CachedPart(int fd, std::uint64_t offset, std::uint64_t nbytes) {
  if (nbytes == 0) return 1.0;
  CachestatRange range{offset, nbytes};
  Cachestat found{};
  if (syscall(kCachestatNumber, fd, &range, &found, 0) != 0) return SampleCache(fd, offset, nbytes);
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  const std::uint64_t pages = (offset + nbytes - 1) / page - offset / page + 1;
  return std::min(1.0, static_cast<double>(found.cached) / static_cast<double>(pages));
}

std::size_t DiskSystemCalls::DirectAlignment([[maybe_unused]] int fd) {
#ifdef STATX_DIOALIGN  // Linux 6.1
  struct statx info {};
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) == 0 && (info.stx_mask & STATX_DIOALIGN) != 0) {
    return std::max<std::size_t>(info.stx_dio_mem_align, info.stx_dio_offset_align);
  }
#endif
  return 4096;
}

#ifdef PACKALLOC_HAVE_LIBURING
int DiskSystemCalls::UringInit(unsigned entries, io_uring* ring) { return io_uring_queue_init(entries, ring, 0); }
#else
int DiskSystemCalls::UringInit(unsigned /*entries*/, io_uring* /*ring*/) { return -ENOSYS; }
#endif

int DiskSystemCalls::UringResult(int result, std::uint64_t /*offset*/, std::size_t /*nbytes*/) { return result; }

std::shared_ptr<DiskSystemCalls> DiskSystemCalls::Default() {
  static const auto& calls = *new std::shared_ptr<DiskSystemCalls>(std::make_shared<DiskSystemCalls>());
  return calls;
}

}  // namespace packalloc
