#include "bench/raw_readers.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#ifdef PACKALLOC_HAVE_LIBURING
#include <liburing.h>
#endif

namespace packalloc::bench {
namespace {

constexpr std::size_t kMib = std::size_t{1} << 20;

class File {
 public:
  File(const std::string& path, int flags) : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC | flags)) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

bool Pread(const std::string& path, std::byte* to, std::size_t nbytes, std::size_t chunk, int flags) {
  const File file(path, flags);
  for (std::size_t at = 0; at < nbytes;) {
    const ssize_t got = pread(file.fd(), to + at, std::min(chunk, nbytes - at), static_cast<off_t>(at));
    if (got <= 0) return false;
    at += static_cast<std::size_t>(got);
  }
  return true;
}

bool MmapCopy(const std::string& path, std::byte* to, std::size_t nbytes, bool populate) {
  const File file(path, 0);
  void* mapping = mmap(nullptr, nbytes, PROT_READ, MAP_SHARED, file.fd(), 0);
  if (mapping == MAP_FAILED) return false;
  constexpr int kPopulateRead = 22;  // MADV_POPULATE_READ, Linux 5.14
  const bool ready = !populate || madvise(mapping, nbytes, kPopulateRead) == 0;
  if (ready) std::memcpy(to, mapping, nbytes);
  munmap(mapping, nbytes);
  return ready;
}

bool DirectStaged(const std::string& path, std::byte* to, std::size_t nbytes) {
  constexpr std::size_t kChunk = 4 * kMib;
  const std::unique_ptr<void, decltype(&std::free)> staging(std::aligned_alloc(4096, kChunk), &std::free);
  const File file(path, O_DIRECT);
  for (std::size_t at = 0; at < nbytes;) {
    const ssize_t got = pread(file.fd(), staging.get(), std::min(kChunk, nbytes - at), static_cast<off_t>(at));
    if (got <= 0) return false;
    std::memcpy(to + at, staging.get(), static_cast<std::size_t>(got));
    at += static_cast<std::size_t>(got);
  }
  return true;
}

#ifdef PACKALLOC_HAVE_LIBURING
bool Uring(const std::string& path, std::byte* to, std::size_t nbytes, std::size_t chunk, unsigned depth) {
  const File file(path, O_DIRECT);
  io_uring ring;
  if (file.fd() < 0 || io_uring_queue_init(depth, &ring, 0) != 0) return false;
  bool whole = true;
  std::size_t submitted = 0;
  std::size_t done = 0;
  unsigned in_flight = 0;
  while (done < nbytes && whole) {
    for (; in_flight < depth && submitted < nbytes; ++in_flight) {
      const std::size_t size = std::min(chunk, nbytes - submitted);
      io_uring_sqe* entry = io_uring_get_sqe(&ring);
      io_uring_prep_read(entry, file.fd(), to + submitted, static_cast<unsigned>(size), submitted);
      io_uring_sqe_set_data(entry, reinterpret_cast<void*>(size));
      submitted += size;
    }
    io_uring_submit_and_wait(&ring, 1);
    io_uring_cqe* result = nullptr;
    while (io_uring_peek_cqe(&ring, &result) == 0) {
      const auto size = reinterpret_cast<std::size_t>(io_uring_cqe_get_data(result));
      whole = whole && result->res == static_cast<int>(size);
      done += size;
      --in_flight;
      io_uring_cqe_seen(&ring, result);
    }
  }
  while (in_flight > 0) {
    io_uring_cqe* result = nullptr;
    if (io_uring_wait_cqe(&ring, &result) != 0) continue;
    io_uring_cqe_seen(&ring, result);
    --in_flight;
  }
  io_uring_queue_exit(&ring);
  return whole;
}
#endif

}  // namespace

std::vector<RawReader> RawReaders() {
  std::vector<RawReader> readers = {
      {"read of 1 MiB", [](const auto& path, auto* to, auto n) { return Pread(path, to, n, kMib, 0); }},
      {"mmap and memcpy", [](const auto& path, auto* to, auto n) { return MmapCopy(path, to, n, false); }},
      {"mmap, populate and memcpy", [](const auto& path, auto* to, auto n) { return MmapCopy(path, to, n, true); }},
      {"direct pread of 8 MiB",
       [](const auto& path, auto* to, auto n) { return Pread(path, to, n, 8 * kMib, O_DIRECT); }},
      {"direct pread of 4 MiB, then memcpy", &DirectStaged},
  };
#ifdef PACKALLOC_HAVE_LIBURING
  readers.push_back({"io_uring direct, 8 of 8 MiB",
                     [](const auto& path, auto* to, auto n) { return Uring(path, to, n, 8 * kMib, 8); }});
  readers.push_back({"io_uring direct, 32 of 4 MiB",
                     [](const auto& path, auto* to, auto n) { return Uring(path, to, n, 4 * kMib, 32); }});
#endif
  return readers;
}

}  // namespace packalloc::bench
