#include "tools/trace_reader.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "lib/parse.h"

namespace packalloc {
namespace {

constexpr std::size_t kReadBytes = 1 << 18;
constexpr std::size_t kMaxLine = 1 << 16;  // what has longer lines is no trace
constexpr absl::string_view kHeader = "Thread,Time,Action,Pointer,Size,Stream";
constexpr absl::string_view kColumnNames[] = {"Thread", "Time", "Action", "Pointer", "Size", "Stream"};

absl::string_view Trim(absl::string_view text) { return absl::StripAsciiWhitespace(text); }

// "0x1f" or decimal digits: a name for the allocation, not an address to go to.
std::optional<std::uint64_t> ReadPointer(absl::string_view text) {
  const bool hex = absl::StartsWithIgnoreCase(text, "0x");
  if (hex) text.remove_prefix(2);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, hex ? 16 : 10);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string Hex(std::uint64_t pointer) { return absl::StrCat("0x", absl::Hex(pointer)); }

}  // namespace

absl::StatusOr<TraceReader> TraceReader::Open(const std::string& path) {
  TraceReader reader(path);
  if (path.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("trace ", Quoted(path), ": the path holds a NUL byte"));
  }
  struct stat info;
  // Before it is opened: opening a pipe would wait for a writer.
  if (stat(path.c_str(), &info) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("trace ", Quoted(path), " cannot be opened"));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat("trace ", Quoted(path), " is ", S_ISDIR(info.st_mode) ? "a directory" : "no regular file"));
  }
  reader.file_.reset(std::fopen(path.c_str(), "rbe"));
  if (!reader.file_) return absl::ErrnoToStatus(errno, absl::StrCat("trace ", Quoted(path), " cannot be opened"));
  reader.bytes_total_ = static_cast<std::uint64_t>(info.st_size);
  absl::StatusOr<bool> any = reader.ReadHeader();
  if (!any.ok()) return any.status();
  if (!*any)
    return absl::InvalidArgumentError(absl::StrCat(path, ":1: the file is empty, it should start with ", kHeader));
  return reader;
}

std::string TraceReader::At(std::uint64_t line, absl::string_view what) const {
  return absl::StrCat(path_, ":", line, ": ", what);
}

absl::Status TraceReader::Fault(absl::string_view what) const {
  return absl::InvalidArgumentError(At(line_number_, what));
}

// The next line that is not empty into line_, without its end. False at the end of the file.
absl::StatusOr<bool> TraceReader::NextLine() {
  while (true) {
    line_.clear();
    bool ended = false;
    while (!ended) {
      if (at_ == buffer_.size()) {
        buffer_.resize(kReadBytes);
        buffer_.resize(std::fread(buffer_.data(), 1, kReadBytes, file_.get()));
        at_ = 0;
        bytes_read_ += buffer_.size();
        if (buffer_.empty()) {
          if (std::ferror(file_.get()) != 0) {
            return absl::UnavailableError(At(line_number_ + 1, absl::StrCat("reading failed: ", std::strerror(errno))));
          }
          if (line_.empty()) return false;
          break;
        }
      }
      const std::size_t end = std::min(buffer_.find('\n', at_), buffer_.size());
      line_.append(buffer_, at_, end - at_);
      ended = end < buffer_.size();
      at_ = ended ? end + 1 : end;
      if (line_.size() > kMaxLine) {
        ++line_number_;
        return Fault(absl::StrCat("the line is longer than ", kMaxLine, " bytes"));
      }
    }
    ++line_number_;
    if (line_.find('\0') != std::string::npos) return Fault("the line holds a NUL byte");
    if (!line_.empty() && line_.back() == '\r') line_.pop_back();
    if (!Trim(line_).empty()) return true;
  }
}

void TraceReader::SplitLine() {
  fields_.clear();
  absl::string_view rest = line_;
  while (true) {
    const std::size_t comma = rest.find(',');
    fields_.push_back(Trim(rest.substr(0, comma)));
    if (comma == absl::string_view::npos) return;
    rest.remove_prefix(comma + 1);
  }
}

// Leaves the first line in line_ where it is none. False for an empty file.
absl::StatusOr<bool> TraceReader::ReadHeader() {
  absl::StatusOr<bool> more = NextLine();
  if (!more.ok() || !*more) return more;
  constexpr absl::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (absl::StartsWith(line_, kByteOrderMark)) line_.erase(0, kByteOrderMark.size());
  SplitLine();
  const auto find = [this](absl::string_view name) -> std::size_t {
    return static_cast<std::size_t>(
        std::distance(fields_.begin(), std::find_if(fields_.begin(), fields_.end(), [name](absl::string_view field) {
                        return absl::EqualsIgnoreCase(field, name);
                      })));
  };
  const bool is_header = std::any_of(std::begin(kColumnNames), std::end(kColumnNames),
                                     [&](absl::string_view name) { return find(name) < fields_.size(); });
  if (!is_header) return true;
  for (const absl::string_view name : kColumnNames) {
    if (find(name) == fields_.size()) return Fault(absl::StrCat("the header has no column ", name));
  }
  columns_ = {.action = find("Action"), .pointer = find("Pointer"), .size = find("Size"), .count = fields_.size()};
  line_.clear();
  return true;
}

absl::StatusOr<bool> TraceReader::Next(TraceEvent& event) {
  // What ReadHeader has read and left, in a file without a header.
  if (line_.empty()) {
    absl::StatusOr<bool> more = NextLine();
    if (!more.ok() || !*more) return more;
  }
  SplitLine();
  absl::Status read = ReadEvent(event);
  line_.clear();
  if (!read.ok()) return read;
  return true;
}

absl::Status TraceReader::ReadEvent(TraceEvent& event) {
  if (fields_.size() < columns_.count) {
    return Fault(absl::StrCat("a column is missing: the line has ", fields_.size(), " of ", columns_.count));
  }
  event.line = line_number_;
  const absl::string_view action = fields_[columns_.action];
  if (action == "allocate") {
    event.action = TraceEvent::Action::kAllocate;
  } else if (action == "free") {
    event.action = TraceEvent::Action::kFree;
  } else if (action == "allocate failure") {
    event.action = TraceEvent::Action::kAllocateFailure;
  } else {
    return Fault(absl::StrCat("unknown action ", Quoted(action), "; known: allocate, allocate failure, free"));
  }

  absl::StatusOr<std::uint64_t> size = ParseUint64(fields_[columns_.size]);
  if (!size.ok()) return Fault(absl::StrCat("the size ", size.status().message()));
  // Nothing is allocated for a failure, so its size may be anything.
  if (*size > kMaxBytes && event.action != TraceEvent::Action::kAllocateFailure) {
    return Fault(absl::StrCat("a size of ", *size, " bytes is more than any device has (", kMaxBytes, ")"));
  }
  event.size = *size;
  event.slot = 0;
  if (event.action == TraceEvent::Action::kAllocateFailure) return absl::OkStatus();

  const std::optional<std::uint64_t> pointer = ReadPointer(fields_[columns_.pointer]);
  if (!pointer) {
    return Fault(absl::StrCat("the pointer ", Quoted(fields_[columns_.pointer]), " is not a number of 64 bits"));
  }
  return event.action == TraceEvent::Action::kAllocate ? Allocate(*pointer, event) : Free(*pointer, event);
}

absl::Status TraceReader::Allocate(std::uint64_t pointer, TraceEvent& event) {
  const bool null = pointer == 0 && event.size == 0;
  if (const auto it = live_.find(pointer); it != live_.end() && !null) {
    return Fault(absl::StrCat(Hex(pointer), " is allocated again, but it is live since line ", it->second.line));
  }
  if (event.size > kMaxBytes - live_bytes_) {
    return Fault(absl::StrCat("with these ", event.size, " bytes, ", live_bytes_ + event.size,
                              " are live, more than any device has (", kMaxBytes, ")"));
  }
  if (free_slots_.empty()) {
    event.slot = live_count();
  } else {
    event.slot = free_slots_.back();
    free_slots_.pop_back();
  }
  if (null) {
    null_slots_.push_back(event.slot);
  } else {
    live_.emplace(pointer, Allocation{event.slot, event.size, event.line});
  }
  live_bytes_ += event.size;
  return absl::OkStatus();
}

absl::Status TraceReader::Free(std::uint64_t pointer, TraceEvent& event) {
  if (pointer == 0 && event.size == 0 && !null_slots_.empty()) {
    event.slot = null_slots_.back();
    null_slots_.pop_back();
    free_slots_.push_back(event.slot);
    return absl::OkStatus();
  }
  const auto it = live_.find(pointer);
  if (it == live_.end()) return Fault(absl::StrCat(Hex(pointer), " is freed, but it is not allocated"));
  if (it->second.size != event.size) {
    return Fault(absl::StrCat(Hex(pointer), " is freed with ", event.size, " bytes, but line ", it->second.line,
                              " allocated it with ", it->second.size));
  }
  event.slot = it->second.slot;
  free_slots_.push_back(event.slot);
  live_bytes_ -= event.size;
  live_.erase(it);
  return absl::OkStatus();
}

}  // namespace packalloc
