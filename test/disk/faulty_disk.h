// A DiskSystemCalls whose calls come short, are interrupted, refused or fail, as a test asks.
#ifndef PACKALLOC_TEST_DISK_FAULTY_DISK_H_
#define PACKALLOC_TEST_DISK_FAULTY_DISK_H_

#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "lib/disk/system_calls.h"

namespace packalloc {

class FaultyDisk : public DiskSystemCalls {
 public:
  // Set before use; read by many threads.
  std::size_t most_per_pread = SIZE_MAX;
  std::atomic<int> interruptions{0};    // preads that give EINTR first
  std::uint64_t fails_at = UINT64_MAX;  // a pread of this byte gives EIO
  int direct_open_error = 0;
  int direct_read_error = 0;
  int uring_init_error = 0;
  std::function<int(int result, std::uint64_t offset, std::size_t nbytes)> uring_result;
  std::optional<double> cached_part;  // what the page cache is said to hold
  std::size_t direct_alignment = 4096;
  std::function<void(std::uint64_t offset)> before_pread;
  int fail_call = 0;  // the n-th call of any kind fails with EIO; 0: none
  std::atomic<int> calls{0};
  std::atomic<int> preads{0};
  std::atomic<int> direct_preads{0};

  int Open(const char* path, int flags, mode_t mode) override {
    if (Fails()) return -1;
    if ((flags & O_DIRECT) != 0 && direct_open_error != 0) {
      errno = direct_open_error;
      return -1;
    }
    return DiskSystemCalls::Open(path, flags, mode);
  }
  ssize_t Pread(int fd, void* to, std::size_t nbytes, std::uint64_t offset) override {
    ++preads;
    const bool direct = (fcntl(fd, F_GETFL) & O_DIRECT) != 0;
    if (direct) ++direct_preads;
    if (Fails()) return -1;
    if (direct && direct_read_error != 0) {
      errno = direct_read_error;
      return -1;
    }
    if (interruptions.fetch_sub(1) > 0) {
      errno = EINTR;
      return -1;
    }
    if (before_pread) before_pread(offset);
    nbytes = std::min(nbytes, most_per_pread);
    if (fails_at >= offset && fails_at - offset < nbytes) {
      if (fails_at == offset) {
        errno = EIO;
        return -1;
      }
      nbytes = fails_at - offset;
    }
    return DiskSystemCalls::Pread(fd, to, nbytes, offset);
  }
  ssize_t Pwrite(int fd, const void* from, std::size_t nbytes, std::uint64_t offset) override {
    if (Fails()) return -1;
    return DiskSystemCalls::Pwrite(fd, from, std::min(nbytes, most_per_pread), offset);
  }
  int Fstat(int fd, struct stat* out) override { return Fails() ? -1 : DiskSystemCalls::Fstat(fd, out); }
  int Ftruncate(int fd, std::uint64_t nbytes) override { return Fails() ? -1 : DiskSystemCalls::Ftruncate(fd, nbytes); }
  std::optional<double> CachedPart(int fd, std::uint64_t offset, std::uint64_t nbytes) override {
    return cached_part ? cached_part : DiskSystemCalls::CachedPart(fd, offset, nbytes);
  }
  std::size_t DirectAlignment(int fd) override {
    return direct_alignment == 0 ? 0 : DiskSystemCalls::DirectAlignment(fd);
  }
  int UringInit(unsigned entries, io_uring* ring) override {
    return uring_init_error != 0 ? uring_init_error : DiskSystemCalls::UringInit(entries, ring);
  }
  int UringResult(int result, std::uint64_t offset, std::size_t nbytes) override {
    return uring_result ? uring_result(result, offset, nbytes) : result;
  }

 private:
  bool Fails() {
    if (fail_call == 0 || ++calls != fail_call) return false;
    errno = EIO;
    return true;
  }
};

}  // namespace packalloc

#endif  // PACKALLOC_TEST_DISK_FAULTY_DISK_H_
