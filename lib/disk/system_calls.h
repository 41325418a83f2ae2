// The operating system's calls that reading a file needs, behind one class, so that a test can make any of them fail,
// come short or be refused.
#ifndef PACKALLOC_LIB_DISK_SYSTEM_CALLS_H_
#define PACKALLOC_LIB_DISK_SYSTEM_CALLS_H_

#include <sys/stat.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

struct io_uring;

namespace packalloc {

// Each returns what the call of its name returns: -1 with errno set, unless said otherwise. Thread-safe.
class DiskSystemCalls {
 public:
  virtual ~DiskSystemCalls() = default;
  virtual int Open(const char* path, int flags, mode_t mode);
  virtual ssize_t Pread(int fd, void* to, std::size_t nbytes, std::uint64_t offset);
  virtual ssize_t Pwrite(int fd, const void* from, std::size_t nbytes, std::uint64_t offset);
  virtual int Fstat(int fd, struct stat* out);
  virtual int Ftruncate(int fd, std::uint64_t nbytes);
  // The part of the range's pages that are in the page cache, 0 to 1; nullopt where the kernel cannot tell.
  virtual std::optional<double> CachedPart(int fd, std::uint64_t offset, std::uint64_t nbytes);
  // The alignment that direct I/O needs for offset, length and memory; 0 where it is refused.
  virtual std::size_t DirectAlignment(int fd);
  // 0, or a negative errno, as io_uring_queue_init.
  virtual int UringInit(unsigned entries, io_uring* ring);
  // A read's result on its way from the ring to the library (bytes, or a negative errno).
  virtual int UringResult(int result, std::uint64_t offset, std::size_t nbytes);

  static std::shared_ptr<DiskSystemCalls> Default();
};

}  // namespace packalloc

#endif  // PACKALLOC_LIB_DISK_SYSTEM_CALLS_H_
