// Counted: how many bytes and buffers a program has allocated now, at its most and in all, as a whole, within a part of
// the program, and by thread.
//
//   absl::StatusOr<packalloc::PackedAllocator> device = packalloc::Counted(*packalloc::Open("CPU"));
//   std::shared_ptr<packalloc::CountedControl> counts = packalloc::Find<packalloc::CountedControl>(*device);
//   counts->PushScope();
//   engine.Step(*device);
//   const std::optional<packalloc::Counts> step = counts->PopScope();
//   std::cout << "the step took " << step->peak_bytes << " bytes at most; now " << counts->counts().current_bytes
//             << " bytes are allocated\n";
#ifndef PACKALLOC_LAYERS_COUNTED_H_
#define PACKALLOC_LAYERS_COUNTED_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "packalloc/allocator.h"
#include "packalloc/packed_allocator.h"

namespace packalloc {

// Bytes as asked of the inner record. External memory and empty buffers do not count.
struct Counts {
  std::size_t current_bytes = 0;  // allocated now; of a scope too, whenever they were allocated
  std::size_t current_buffers = 0;
  std::size_t peak_bytes = 0;  // the most of the above, since the layer or the scope began
  std::size_t peak_buffers = 0;
  std::uint64_t total_bytes = 0;  // all that was allocated since then
  std::uint64_t allocations = 0;
  std::uint64_t frees = 0;
  std::uint64_t failed_allocations = 0;  // also those that threw
};

// What one thread has done, whoever frees what it allocated.
struct ThreadCounts {
  std::uint64_t allocated_bytes = 0;
  std::uint64_t allocations = 0;
  std::uint64_t freed_bytes = 0;
  std::uint64_t frees = 0;
};

struct CountedOptions {
  bool by_thread = false;
};

// What Find<CountedControl> finds. Thread-safe: each answer is consistent in itself, and exact where no call is under
// way.
class CountedControl {
 public:
  virtual ~CountedControl() = default;
  virtual Counts counts() const = 0;
  // Scopes nest, as RMM's push_counters and pop_counters do; they are the record's, not a thread's. PopScope ends the
  // innermost and tells what it counted; nullopt where there is none.
  virtual void PushScope() = 0;
  virtual std::optional<Counts> PopScope() = 0;
  // Empty unless CountedOptions::by_thread. Threads that have ended are kept.
  virtual std::map<std::thread::id, ThreadCounts> by_thread() const = 0;
};

// A record (or packed allocator) like `record` that counts. Errors are `record`'s. FAILED_PRECONDITION for an empty
// packed allocator. Thread-safe.
absl::StatusOr<PackedAllocator> Counted(const PackedAllocator& packed, const CountedOptions& options = {});
template <typename Buf>
absl::StatusOr<Allocator<Buf>> Counted(Allocator<Buf> record, const CountedOptions& options = {});

// The layer itself, over boxed handles: for authors of layers.
absl::StatusOr<AnyRecord> CountedLayer(AnyRecord inner, const CountedOptions& options);

// ---- implementation ----

template <typename Buf>
absl::StatusOr<Allocator<Buf>> Counted(Allocator<Buf> record, const CountedOptions& options) {
  return ApplyLayer(std::move(record), [&](AnyRecord inner) { return CountedLayer(std::move(inner), options); });
}

}  // namespace packalloc

#endif  // PACKALLOC_LAYERS_COUNTED_H_
