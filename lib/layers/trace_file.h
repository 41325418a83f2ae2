// A file that grows by whole lines, a block of them per write.
#ifndef PACKALLOC_LIB_LAYERS_TRACE_FILE_H_
#define PACKALLOC_LIB_LAYERS_TRACE_FILE_H_

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace packalloc {

// One thread at a time. The destructor writes what is left.
class TraceFile {
 public:
  static absl::StatusOr<std::unique_ptr<TraceFile>> Create(const std::string& path, std::size_t block_bytes);
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // A line without its end. Never fails: what cannot be written is lost, with one warning.
  void Append(absl::string_view line) noexcept;
  // OK, or why writing failed, now or before.
  absl::Status Flush() noexcept;

 private:
  TraceFile(std::string path, int file, std::size_t block_bytes);
  void GiveUp(int error) noexcept;

  const std::string path_;
  const int file_;
  const std::size_t block_bytes_;
  const pid_t process_;
  std::string block_;
  off_t written_ = 0;
  absl::Status status_;
};

}  // namespace packalloc

#endif  // PACKALLOC_LIB_LAYERS_TRACE_FILE_H_
