#include <algorithm>
#include <array>
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
  switch (entry.call) {
    case MockCall::kAlloc:
      return absl::StrCat(" ", entry.nbytes, entry.status.ok() ? absl::StrCat(" -> ", Name(entry.buf)) : "");
    case MockCall::kOffset:
      return absl::StrCat(" ", Name(entry.source), " ", entry.nbytes, " -> ", Name(entry.buf));
    case MockCall::kTransfer:
      return absl::StrCat(" ", Name(entry.buf), " <- ", Name(entry.source), " ", entry.nbytes);
    case MockCall::kFree:
    case MockCall::kCopyin:
    case MockCall::kCopyout:
    case MockCall::kCopyFromDisk:
      return absl::StrCat(" ", Name(entry.buf), " ", entry.nbytes);
    case MockCall::kAddr:
    case MockCall::kHostPtr:
      return absl::StrCat(" ", Name(entry.buf));
    case MockCall::kMemoryInfo:
    case MockCall::kSynchronize:
    case MockCall::kUser:
      break;
  }
  return "";
}

}  // namespace

std::string_view ToString(MockCall call) {
  constexpr std::array<std::string_view, kMockCallKinds> kNames = {
      "alloc",    "free",           "copyin",   "copyout",     "addr",        "offset",
      "transfer", "copy_from_disk", "host_ptr", "memory_info", "synchronize", "user"};
  return kNames.at(static_cast<std::size_t>(call));
}

std::string ToString(const MockEntry& entry) {
  if (entry.call == MockCall::kUser) return entry.text;
  return absl::StrCat(entry.device, ": ", std::string(ToString(entry.call)), Arguments(entry),
                      entry.status.ok() ? "" : absl::StrCat(": ", absl::StatusCodeToString(entry.status.code())));
}

void MockLog::Add(std::string text) { Add(MockEntry{.call = MockCall::kUser, .text = std::move(text)}); }

void MockLog::Add(MockEntry entry) {
  const std::lock_guard lock(mutex_);
  entries_.push_back(std::move(entry));
}

std::vector<MockEntry> MockLog::entries() const {
  const std::lock_guard lock(mutex_);
  return entries_;
}

std::vector<std::string> MockLog::Lines(std::initializer_list<MockCall> only) const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> lines;
  for (const MockEntry& entry : entries_) {
    if (only.size() == 0 || std::find(only.begin(), only.end(), entry.call) != only.end()) {
      lines.push_back(ToString(entry));
    }
  }
  return lines;
}

std::size_t MockLog::Count(MockCall call) const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::size_t>(
      std::count_if(entries_.begin(), entries_.end(), [call](const MockEntry& entry) { return entry.call == call; }));
}

void MockLog::Clear() {
  const std::lock_guard lock(mutex_);
  entries_.clear();
}

}  // namespace packalloc
