#include "lib/layers/trace_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/env.h"
#include "lib/parse.h"

namespace packalloc {

absl::StatusOr<std::unique_ptr<TraceFile>> TraceFile::Create(const std::string& path, std::size_t block_bytes) {
  if (path.empty() || path.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("the trace needs the name of a file; it is ", Quoted(path)));
  }
  // A pipe that nobody reads is refused, not waited for; one that is read makes its writers wait as usual.
  constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC;
  const int file = open(path.c_str(), kFlags | O_NONBLOCK, 0666);
  if (file < 0 && errno == ENXIO) {
    return absl::FailedPreconditionError(absl::StrCat("trace ", Quoted(path), " is a pipe that nobody reads"));
  }
  if (file < 0) return absl::ErrnoToStatus(errno, absl::StrCat("trace ", Quoted(path), " cannot be created"));
  fcntl(file, F_SETFL, O_APPEND);
  return std::unique_ptr<TraceFile>(new TraceFile(path, file, block_bytes));
}

TraceFile::TraceFile(std::string path, int file, std::size_t block_bytes)
    : path_(std::move(path)), file_(file), block_bytes_(block_bytes), process_(getpid()) {}

TraceFile::~TraceFile() {
  Flush().IgnoreError();
  close(file_);
}

void TraceFile::Append(absl::string_view line) noexcept {
  if (!status_.ok()) return;
  try {
    absl::StrAppend(&block_, line, "\n");
  } catch (...) {
    GiveUp(ENOMEM);
    return;
  }
  if (block_.size() >= block_bytes_) Flush().IgnoreError();
}

absl::Status TraceFile::Flush() noexcept {
  // A forked child has a copy of what its parent is going to write.
  if (getpid() != process_) block_.clear();
  absl::string_view rest = block_;
  while (status_.ok() && !rest.empty()) {
    const ssize_t n = write(file_, rest.data(), rest.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      GiveUp(n < 0 ? errno : ENOSPC);
      break;
    }
    rest.remove_prefix(static_cast<std::size_t>(n));
  }
  if (status_.ok()) written_ += static_cast<off_t>(block_.size());
  block_.clear();
  return status_;
}

// A block that went out in part leaves a part of a line behind.
void TraceFile::GiveUp(int error) noexcept {
  std::ignore = ftruncate(file_, written_);
  try {
    status_ = absl::ErrnoToStatus(error, absl::StrCat("trace ", Quoted(path_), " cannot be written"));
    WarnOnce(absl::StrCat(status_.message(), "; it ends here"));
  } catch (...) {
    status_ = absl::UnavailableError("");
  }
}

}  // namespace packalloc
