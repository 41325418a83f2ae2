// Reads in flight: submitted one by one, finished in any order. By io_uring, by threads that call pread, or, where
// neither pays, on the caller's thread.
#ifndef PACKALLOC_LIB_DISK_ASYNC_READER_H_
#define PACKALLOC_LIB_DISK_ASYNC_READER_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "packalloc/disk_file.h"

namespace packalloc {

struct ReadOp {
  DiskFile* file = nullptr;
  std::uint64_t offset = 0;
  std::byte* to = nullptr;
  std::size_t nbytes = 0;  // that must come
  std::size_t room = 0;    // that a direct read asks for: nbytes rounded up to the alignment; fits `to`
  bool direct = false;     // by direct I/O, if that is not refused meanwhile
  bool cached = false;     // was in the page cache when planned (for the statistics)
  absl::Status status;     // valid once finished
};

class AsyncReader {
 public:
  // Waits for every read in flight.
  virtual ~AsyncReader() = default;
  // `op` stays the caller's and must live until Wait returns it. Never fails: an error becomes op->status.
  virtual void Submit(ReadOp* op) = 0;
  // The next finished read. At least one must be in flight.
  virtual ReadOp* Wait() = 0;
};

// Null where io_uring is not built in or refused, which `file` then remembers.
std::unique_ptr<AsyncReader> MakeUringReader(DiskFile& file, unsigned depth);
// With `threads` threads; 0 reads inside Wait.
std::unique_ptr<AsyncReader> MakeThreadReader(unsigned threads);

// Does `op` on this thread, from byte `got` on, with every fallback; sets its status.
void FinishRead(ReadOp& op, std::size_t got);

}  // namespace packalloc

#endif  // PACKALLOC_LIB_DISK_ASYNC_READER_H_
