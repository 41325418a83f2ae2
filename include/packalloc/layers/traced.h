// Traced: writes every allocation and free to a file in the format of RMM's log, for looking at what a program asks
// for, for RMM's tools, and for `packalloc replay`, which runs it again over any device and cache.
//
//   absl::StatusOr<packalloc::PackedAllocator> device =
//       packalloc::Traced(*packalloc::Open("CPU"), {.file = "trace.csv"});      // or Open("CPU+traced:file=trace.csv")
//   {
//     const packalloc::TraceLabel label("attention");       // comes out in a column of its own
//     engine.Step(*device);
//   }
//   absl::Status written = packalloc::Find<packalloc::TracedControl>(*device)->Flush();
//   // $ packalloc replay trace.csv --device CPU+lru
#ifndef PACKALLOC_LAYERS_TRACED_H_
#define PACKALLOC_LAYERS_TRACED_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "packalloc/allocator.h"
#include "packalloc/packed_allocator.h"

namespace packalloc {

struct TracedOptions {
  std::string file{};                   // created or emptied
  std::size_t block_bytes = 64 * 1024;  // as much is collected and written at a time, whole lines only
};

// What Find<TracedControl> finds. Thread-safe.
class TracedControl {
 public:
  virtual ~TracedControl() = default;
  // Writes what is collected. OK, or why writing failed (now, or before: then nothing is written any more).
  virtual absl::Status Flush() = 0;
};

// What this thread allocates in the scope of such an object bears the name; of several around each other "outer/inner".
// Commas, quotes and line ends in it become '_'. For all Traced layers.
class TraceLabel {
 public:
  explicit TraceLabel(std::string_view name);
  ~TraceLabel();
  TraceLabel(const TraceLabel&) = delete;
  TraceLabel& operator=(const TraceLabel&) = delete;

 private:
  std::size_t outer_size_;
};

// A record (or packed allocator) like `record` that writes one line per allocation, failed allocation and free:
// Thread,Time,Action,Pointer,Size,Stream,Label, as RMM does, and the label that RMM's readers ignore; Time in UTC.
// Pointer is the buffer's address, or where that is in the trace already (extents of one file) another unique number.
// External memory and empty buffers are not written; sizes above 2^50 bytes as 2^50.
//
// The file has whole lines only, at any moment: after a crash those up to the last block. When writing fails (a full
// disk), a warning on stderr says so, once, the file is cut after its last whole line, and the program goes on without.
// A forked child writes nothing.
//
// INVALID_ARGUMENT without a file name or for block_bytes of 0; NOT_FOUND, PERMISSION_DENIED, ... where the file cannot
// be created. FAILED_PRECONDITION for an empty packed allocator. Errors of calls are `record`'s. Thread-safe.
absl::StatusOr<PackedAllocator> Traced(const PackedAllocator& packed, const TracedOptions& options);
template <typename Buf>
absl::StatusOr<Allocator<Buf>> Traced(Allocator<Buf> record, const TracedOptions& options);

// The layer itself, over boxed handles: for authors of layers.
absl::StatusOr<AnyRecord> TracedLayer(AnyRecord inner, const TracedOptions& options);

// ---- implementation ----

template <typename Buf>
absl::StatusOr<Allocator<Buf>> Traced(Allocator<Buf> record, const TracedOptions& options) {
  return ApplyLayer(std::move(record), [&](AnyRecord inner) { return TracedLayer(std::move(inner), options); });
}

}  // namespace packalloc

#endif  // PACKALLOC_LAYERS_TRACED_H_
