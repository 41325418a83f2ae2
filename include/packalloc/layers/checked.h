// Checked: finds the mistakes of a program that uses device memory, while it runs: double frees, frees and uses of what
// is not (or no longer) allocated, copies out of range, bytes written before and after a buffer, leaks. For tests and
// debugging; each operation costs a table look-up, each allocation a stack trace.
//
//   absl::StatusOr<packalloc::PackedAllocator> device =
//       packalloc::Checked(*packalloc::Open("CPU+lru"));      // or Open("CPU+lru+checked")
//   absl::StatusOr<packalloc::AnyBuf> buf = device->alloc(4096);
//   absl::Status freed = device->free(*buf, 4096);
//   absl::Status again = device->free(*buf, 4096);   // "double free of a buffer of 4096 bytes of CPU; it was
//                                                    //  allocated by Engine::Load < main, and freed by main"
//   for (const packalloc::CheckedReport& leak : packalloc::Find<packalloc::CheckedControl>(*device)->leaks()) {
//     std::cerr << leak.message << '\n';
//   }
#ifndef PACKALLOC_LAYERS_CHECKED_H_
#define PACKALLOC_LAYERS_CHECKED_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "packalloc/allocator.h"
#include "packalloc/packed_allocator.h"

namespace packalloc {

// What was wrong, and the code of the status that the call answers.
enum class CheckedFault {
  kDoubleFree,    // FAILED_PRECONDITION
  kUseAfterFree,  // FAILED_PRECONDITION; also through a view that outlived its buffer
  kForeign,       // INVALID_ARGUMENT: not allocated here
  kInterior,      // INVALID_ARGUMENT: free of a view, or of an address inside a buffer
  kSizeMismatch,  // INVALID_ARGUMENT: free with another size than alloc
  kSpecMismatch,  // INVALID_ARGUMENT: free with another spec than alloc
  kOutOfRange,    // OUT_OF_RANGE
  kUnderrun,      // DATA_LOSS, at free: bytes before the buffer were overwritten. The buffer is freed all the same
  kOverrun,       // DATA_LOSS, at free: bytes behind it
  kLeak,          // no status: when the layer ends
};
const char* ToString(CheckedFault fault);

struct CheckedReport {
  CheckedFault fault = CheckedFault::kForeign;
  std::string message;                    // what the status says too, with the places below
  std::vector<std::string> allocated_at;  // function names, the innermost first; empty where not known
  std::vector<std::string> freed_at;
};

struct CheckedOptions {
  // Bytes before and behind each buffer that nobody may write; looked at when it is freed. Rounded up in front to the
  // buffer's alignment (there none above 4096, nor where addresses are opaque handles). 0: none. They are taken from
  // the inner record beside what is asked for, where it has offset and host_ptr.
  std::size_t guard_bytes = 64;
  // Whether fresh memory is filled with 0xCB (unless spec.zero) and freed memory with 0xDD.
  bool poison = true;
  std::size_t stack_depth = 16;  // frames kept of each alloc and free; 0: none
  std::size_t history = 4096;    // freed buffers whose places are remembered
  // Called for each fault, before the call answers it, without a lock, on the thread of the call. What it throws passes
  // through (not at the end, for leaks). Unset: leaks are told on stderr, everything else by the status alone.
  std::function<void(const CheckedReport&)> on_fault{};
  // Writes the message to stderr and aborts, so that a debugger shows the very call. Not for leaks.
  bool abort_on_fault = false;
};

struct CheckedStats {
  std::size_t live_buffers = 0;
  std::size_t live_bytes = 0;  // as asked for, external memory too
  std::uint64_t faults = 0;
  // Live buffers without guards and poison: external or device memory, or writing them failed.
  std::size_t unguarded_buffers = 0;
};

// What Find<CheckedControl> finds. Thread-safe.
class CheckedControl {
 public:
  virtual ~CheckedControl() = default;
  virtual CheckedStats stats() const = 0;
  // A report for each buffer that is live now: at the end of a test, what it has leaked.
  virtual std::vector<CheckedReport> leaks() const = 0;
  // Tells each of leaks() as the end of the layer does: to on_fault, or on stderr. What is leaked may keep the layer
  // from ever ending (a Buffer keeps its allocator), so Shutdown of the registry calls this.
  virtual void ReportLeaks() const = 0;
};

// A record (or packed allocator) like `record` that refuses, with the status of CheckedFault, every call that makes one
// of those mistakes, without calling `record`. Everything else it passes on. Packed, each buffer has an identity of its
// own (its serial number), so mistakes are found also when a cache below has handed the same memory out again; on a
// typed record a buffer is its address, and a handle that outlived its buffer passes for the next one at that address.
//
// Guards and poison are for memory that the CPU reaches (host_ptr answers), never for external_ptr. They are written
// with copyin, so that they keep their order among what is pending; host_ptr waits (synchronize) the first time. Where
// that fails, the buffer goes without. Where the inner free fails, the buffer stays allocated, but what it held may be
// poison.
//
// What it cannot see: a kernel that uses an address after the buffer was freed, or beyond the guards; the CPU through a
// host_ptr; what is done through another record over the same device. A buffer of another allocator of the same
// transfer domain is taken by transfer, unchecked.
//
// INVALID_ARGUMENT over another Checked. A cache lies inside (Lru over Checked is refused). FAILED_PRECONDITION for an
// empty packed allocator. Thread-safe, usable in a forked child if the inner record is.
absl::StatusOr<PackedAllocator> Checked(const PackedAllocator& packed, const CheckedOptions& options = {});
template <typename Buf>
absl::StatusOr<Allocator<Buf>> Checked(Allocator<Buf> record, const CheckedOptions& options = {});

// The layer itself, over boxed handles: for authors of layers.
absl::StatusOr<AnyRecord> CheckedLayer(AnyRecord inner, const CheckedOptions& options);

// ---- implementation ----

template <typename Buf>
absl::StatusOr<Allocator<Buf>> Checked(Allocator<Buf> record, const CheckedOptions& options) {
  return ApplyLayer(std::move(record), [&](AnyRecord inner) { return CheckedLayer(std::move(inner), options); });
}

}  // namespace packalloc

#endif  // PACKALLOC_LAYERS_CHECKED_H_
