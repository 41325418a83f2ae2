#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "packalloc/backends/mock.h"

namespace packalloc {
namespace {

std::string Name(const MockBuf& buf) {
  std::string name = absl::StrCat("#", static_cast<std::uint32_t>(buf.block));
  if (buf.byte_offset != 0) absl::StrAppend(&name, "+", buf.byte_offset);
  return name;
}

std::string Arguments(const MockEntry& entry) {
  switch (*entry.call) {
    case Member::kAlloc:
      return absl::StrCat(" ", entry.nbytes, entry.status.ok() ? absl::StrCat(" -> ", Name(entry.buf)) : "");
    case Member::kOffset:
      return absl::StrCat(" ", Name(entry.source), " ", entry.nbytes, " -> ", Name(entry.buf));
    case Member::kTransfer:
      return absl::StrCat(" ", Name(entry.buf), " <- ", Name(entry.source), " ", entry.nbytes);
    case Member::kFree:
    case Member::kCopyin:
    case Member::kCopyout:
    case Member::kCopyFromDisk:
      return absl::StrCat(" ", Name(entry.buf), " ", entry.nbytes);
    case Member::kAddr:
    case Member::kHostPtr:
      return absl::StrCat(" ", Name(entry.buf));
    case Member::kMemoryInfo:
    case Member::kSynchronize:
      break;
  }
  return "";
}

}  // namespace

std::string ToString(const MockEntry& entry) {
  if (!entry.call.has_value()) return entry.text;
  return absl::StrCat(entry.device, ": ", std::string(ToString(*entry.call)), Arguments(entry),
                      entry.status.ok() ? "" : absl::StrCat(": ", absl::StatusCodeToString(entry.status.code())));
}

void MockLog::Add(std::string text) { Add(MockEntry{.call = kUserEntry, .text = std::move(text)}); }

void MockLog::Add(MockEntry entry) {
  const std::lock_guard lock(mutex_);
  entries_.push_back(std::move(entry));
}

std::vector<MockEntry> MockLog::entries() const {
  const std::lock_guard lock(mutex_);
  return entries_;
}

std::vector<std::string> MockLog::Lines(std::initializer_list<std::optional<Member>> only) const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> lines;
  for (const MockEntry& entry : entries_) {
    if (only.size() == 0 || std::find(only.begin(), only.end(), entry.call) != only.end()) {
      lines.push_back(ToString(entry));
    }
  }
  return lines;
}

std::size_t MockLog::Count(Member call) const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::size_t>(
      std::count_if(entries_.begin(), entries_.end(), [call](const MockEntry& entry) { return entry.call == call; }));
}

void MockLog::Clear() {
  const std::lock_guard lock(mutex_);
  entries_.clear();
}

}  // namespace packalloc
