// Reads an allocation trace in the format of RMM's log (CSV: Thread,Time,Action,Pointer,Size,Stream), one event at a
// time, and holds it to what can have happened: a pointer is allocated once before it is freed, with the same size.
//
//   absl::StatusOr<TraceReader> reader = TraceReader::Open("trace.csv");
//   TraceEvent event;
//   while (true) {
//     absl::StatusOr<bool> more = reader->Next(event);
//     if (!more.ok()) return more.status();   // "trace.csv:17: 0x1f is freed, but it is not allocated"
//     if (!*more) break;
//     ...
//   }
#ifndef PACKALLOC_TOOLS_TRACE_READER_H_
#define PACKALLOC_TOOLS_TRACE_READER_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace packalloc {

struct TraceEvent {
  enum class Action { kAllocate, kAllocateFailure, kFree };
  Action action = Action::kAllocate;
  std::uint64_t size = 0;  // bytes
  // Of the allocation, as long as it is live: less than the most that are ever live, so that a vector holds them all.
  // 0 for a failure.
  std::size_t slot = 0;
  std::uint64_t line = 0;  // in the file, from 1
};

// Columns stand as a header line names them, or in the order above where the file has none; further ones are ignored.
// Lines may end in CR LF, and empty ones are skipped. One thread at a time.
class TraceReader {
 public:
  // No event may be larger than this, nor all live ones together: no device has as much.
  static constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 50;

  // NOT_FOUND where there is no such file, PERMISSION_DENIED, INVALID_ARGUMENT for what is not a regular file or empty.
  static absl::StatusOr<TraceReader> Open(const std::string& path);

  // True with the next event in `event`, false at the end. INVALID_ARGUMENT "FILE:LINE: what is wrong" for a line that
  // is malformed or cannot have happened; UNAVAILABLE where reading fails. Not to be called again after an error.
  absl::StatusOr<bool> Next(TraceEvent& event);

  std::uint64_t bytes_read() const { return bytes_read_; }
  std::uint64_t bytes_total() const { return bytes_total_; }
  // The number of allocations that are live after the last event, and their bytes.
  std::size_t live_count() const { return live_.size() + null_slots_.size(); }
  std::uint64_t live_bytes() const { return live_bytes_; }

  // `what` put behind "FILE:LINE: ".
  std::string At(std::uint64_t line, absl::string_view what) const;

 private:
  struct Allocation {
    std::size_t slot;
    std::uint64_t size;
    std::uint64_t line;
  };
  struct Closer {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  // Where the columns that matter stand.
  struct Columns {
    std::size_t action = 2;
    std::size_t pointer = 3;
    std::size_t size = 4;
    std::size_t count = 6;
  };

  explicit TraceReader(std::string path) : path_(std::move(path)) {}
  absl::StatusOr<bool> NextLine();
  absl::StatusOr<bool> ReadHeader();
  absl::Status ReadEvent(TraceEvent& event);
  absl::Status Allocate(std::uint64_t pointer, TraceEvent& event);
  absl::Status Free(std::uint64_t pointer, TraceEvent& event);
  absl::Status Fault(absl::string_view what) const;
  void SplitLine();

  std::string path_;
  std::unique_ptr<std::FILE, Closer> file_;
  std::uint64_t bytes_total_ = 0;
  std::uint64_t bytes_read_ = 0;
  std::string buffer_;
  std::size_t at_ = 0;
  std::string line_;
  std::uint64_t line_number_ = 0;
  std::vector<absl::string_view> fields_;
  Columns columns_;
  absl::flat_hash_map<std::uint64_t, Allocation> live_;
  // RMM gives every allocation of no bytes the null pointer, so any number of them may be live.
  std::vector<std::size_t> null_slots_;
  std::uint64_t live_bytes_ = 0;
  std::vector<std::size_t> free_slots_;
};

}  // namespace packalloc

#endif  // PACKALLOC_TOOLS_TRACE_READER_H_
