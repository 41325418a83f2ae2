#include "lib/disk/async_reader.h"

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/disk/disk_file_access.h"
#include "lib/disk/system_calls.h"

#ifdef PACKALLOC_HAVE_LIBURING
#include <liburing.h>
#endif

namespace packalloc {
namespace {

using Access = DiskFileAccess;

// NOLINTNEXTLINE(misc-redundant-expression): the last two are one number on Linux only
bool RefusesDirect(int error) { return error == EINVAL || error == EOPNOTSUPP || error == ENOTSUP; }

// Direct pread until the op is whole, comes short at an unaligned place, or is refused. Returns the bytes got.
std::size_t ReadDirect(ReadOp& op, std::size_t got) {
  const int fd = Access::DirectFd(*op.file);
  const std::size_t alignment = Access::DirectAlignment(*op.file);
  while (fd >= 0 && got < op.nbytes && got % alignment == 0) {
    const ssize_t read = Access::System(*op.file).Pread(fd, op.to + got, op.room - got, op.offset + got);
    if (read < 0 && errno == EINTR) continue;
    if (read < 0) {
      if (RefusesDirect(errno)) {
        Access::RefuseDirect(*op.file, absl::StrCat("refused at read: ", ErrorText(errno)));
      } else {
        op.status = Access::ReadError(*op.file, op.offset, op.nbytes, got, errno);
      }
      return got;
    }
    if (read == 0) return got;  // the plain read below says what is missing
    const auto more = static_cast<std::size_t>(read);
    Access::Count(*op.file, ReadWay::kDirect, std::min(more, op.nbytes - got));
    got += more;
  }
  return got;
}

}  // namespace

void FinishRead(ReadOp& op, std::size_t got) {
  op.status = absl::OkStatus();
  if (op.direct) got = ReadDirect(op, got);
  if (!op.status.ok() || got >= op.nbytes) return;
  op.status = Access::ReadRest(*op.file, op.offset, op.to, op.nbytes, got);
  if (op.status.ok()) Access::Count(*op.file, op.cached ? ReadWay::kPageCache : ReadWay::kBuffered, op.nbytes - got);
}

namespace {

class ThreadReader : public AsyncReader {
 public:
  explicit ThreadReader(unsigned threads) {
    try {
      for (unsigned i = 0; i < threads; ++i) threads_.emplace_back([this] { Work(); });
    } catch (const std::system_error&) {
      // No thread to be had: fewer, or the caller's, do the same work.
    }
  }
  ~ThreadReader() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      waiting_.clear();
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void Submit(ReadOp* op) override {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(op);
    }
    work_.notify_one();
  }

  ReadOp* Wait() override {
    std::unique_lock lock(mutex_);
    if (threads_.empty()) {
      ReadOp* op = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      FinishRead(*op, 0);
      return op;
    }
    finished_cv_.wait(lock, [this] { return !finished_.empty(); });
    ReadOp* op = finished_.front();
    finished_.pop_front();
    return op;
  }

 private:
  void Work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      work_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      ReadOp* op = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      FinishRead(*op, 0);
      lock.lock();
      finished_.push_back(op);
      finished_cv_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable finished_cv_;
  std::deque<ReadOp*> waiting_;
  std::deque<ReadOp*> finished_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<AsyncReader> MakeThreadReader(unsigned threads) { return std::make_unique<ThreadReader>(threads); }

#ifdef PACKALLOC_HAVE_LIBURING

namespace {

class UringReader : public AsyncReader {
 public:
  UringReader() = default;
  ~UringReader() override {
    if (!open_) return;
    while (in_flight_ > 0) UringReader::Wait();
    io_uring_queue_exit(&ring_);
  }

  // 0 or a negative errno.
  int Init(DiskSystemCalls& system, unsigned depth) {
    const int result = system.UringInit(depth, &ring_);
    open_ = result == 0;
    return result;
  }

  void Submit(ReadOp* op) override {
    const int fd = op->direct ? Access::DirectFd(*op->file) : -1;
    io_uring_sqe* entry = fd < 0 ? nullptr : io_uring_get_sqe(&ring_);
    if (entry != nullptr) {
      // The length of one entry is 32 bits; slots and blocks are far smaller.
      io_uring_prep_read(entry, fd, op->to, static_cast<unsigned>(op->room), op->offset);
      io_uring_sqe_set_data(entry, op);
      int submitted = 0;
      do {
        submitted = io_uring_submit(&ring_);
      } while (submitted == -EINTR || submitted == -EAGAIN);
      if (submitted >= 1) {
        ++in_flight_;
        return;
      }
      // The entry stays in the queue and would be sent with the next one: turn it into nothing.
      io_uring_prep_nop(entry);
      io_uring_sqe_set_data(entry, nullptr);
      Access::RefuseUring(*op->file, absl::StrCat("refused at submission: ", ErrorText(-submitted)));
    }
    by_hand_.push_back(op);
  }

  ReadOp* Wait() override {
    if (!by_hand_.empty()) {
      ReadOp* op = by_hand_.front();
      by_hand_.pop_front();
      FinishRead(*op, 0);
      return op;
    }
    for (;;) {
      io_uring_cqe* done = nullptr;
      if (io_uring_wait_cqe(&ring_, &done) != 0) continue;  // a signal
      auto* op = static_cast<ReadOp*>(io_uring_cqe_get_data(done));
      const int result = done->res;
      io_uring_cqe_seen(&ring_, done);
      if (op == nullptr) continue;
      --in_flight_;
      Finish(*op, Access::System(*op->file).UringResult(result, op->offset, op->nbytes));
      return op;
    }
  }

 private:
  static void Finish(ReadOp& op, int result) {
    if (result >= 0) {
      const auto got = static_cast<std::size_t>(result);
      Access::Count(*op.file, ReadWay::kUring, std::min(got, op.nbytes));
      if (got < op.nbytes) {
        FinishRead(op, got);
      } else {
        op.status = absl::OkStatus();
      }
      return;
    }
    const int error = -result;
    if (error == EINTR || error == EAGAIN || RefusesDirect(error)) {
      FinishRead(op, 0);  // finds out by itself whether direct I/O is refused
    } else {
      op.status = Access::ReadError(*op.file, op.offset, op.nbytes, 0, error);
    }
  }

  io_uring ring_{};
  bool open_ = false;
  std::size_t in_flight_ = 0;
  std::deque<ReadOp*> by_hand_;
};

}  // namespace

std::unique_ptr<AsyncReader> MakeUringReader(DiskFile& file, unsigned depth) {
  if (!Access::UringAllowed(file)) return nullptr;
  auto reader = std::make_unique<UringReader>();
  if (const int result = reader->Init(Access::System(file), depth); result != 0) {
    Access::RefuseUring(file, absl::StrCat("refused at set-up: ", ErrorText(-result)));
    return nullptr;
  }
  return reader;
}

#else

std::unique_ptr<AsyncReader> MakeUringReader(DiskFile& file, unsigned /*depth*/) {
  Access::RefuseUring(file, "built without liburing");
  return nullptr;
}

#endif

}  // namespace packalloc
