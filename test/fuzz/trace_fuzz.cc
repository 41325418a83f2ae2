// Allocation traces: whatever the file, the events that the reader gives can have happened.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>

#include "tools/trace_reader.h"

namespace {

// A file without a place on the disk.
class MemoryFile {
 public:
  MemoryFile(const std::uint8_t* data, std::size_t size) : file_(memfd_create("trace", MFD_CLOEXEC)) {
    if (file_ < 0 || write(file_, data, size) != static_cast<ssize_t>(size)) std::abort();
  }
  ~MemoryFile() { close(file_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(file_); }

 private:
  const int file_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using packalloc::TraceEvent;
  const MemoryFile file(data, size);
  absl::StatusOr<packalloc::TraceReader> reader = packalloc::TraceReader::Open(file.path());
  if (!reader.ok()) return 0;
  std::map<std::size_t, std::uint64_t> live;  // slot -> bytes
  std::uint64_t bytes = 0;
  TraceEvent event;
  while (true) {
    const absl::StatusOr<bool> more = reader->Next(event);
    if (!more.ok() || !*more) break;
    if (event.action == TraceEvent::Action::kAllocate) {
      if (!live.emplace(event.slot, event.size).second) std::abort();
      bytes += event.size;
    } else if (event.action == TraceEvent::Action::kFree) {
      const auto it = live.find(event.slot);
      if (it == live.end() || it->second != event.size) std::abort();
      bytes -= event.size;
      live.erase(it);
    }
    if (reader->live_count() != live.size() || reader->live_bytes() != bytes) std::abort();
  }
  if (reader->bytes_read() > size) std::abort();
  return 0;
}
