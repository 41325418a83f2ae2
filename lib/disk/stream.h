// The pipeline from files into memory and devices: several reads in flight, each piece delivered as it comes, with
// bounded staging. Ranges that are in the page cache are read from there by a few threads, others by direct I/O.
#ifndef PACKALLOC_LIB_DISK_STREAM_H_
#define PACKALLOC_LIB_DISK_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "packalloc/disk_file.h"

namespace packalloc {

// One range of a file and where its bytes go.
struct StreamTarget {
  DiskFile* file = nullptr;  // outlives the call
  std::uint64_t offset = 0;
  std::size_t nbytes = 0;
  std::byte* host = nullptr;  // memory of `nbytes` that the CPU writes; null: through StreamOptions::deliver
};

struct StreamOptions {
  // At most this much memory is staged at any time, in slots of up to
  // most_slot_bytes, of which there are always two or more.
  std::size_t staging_bytes = std::size_t{64} << 20;
  std::size_t most_slot_bytes = std::size_t{4} << 20;
  // Called on the caller's thread for each piece of a target without `host`: bytes for `target_offset` of
  // targets[target], lying in staging slot `slot`. May return before they are consumed if `slot_free` is set.
  std::function<absl::Status(std::size_t target, std::size_t target_offset, absl::Span<const std::byte> bytes,
                             std::size_t slot)>
      deliver{};
  // Waits until what was delivered from `slot` is consumed; called before each reuse and for each slot at the end, also
  // after an error. Null: deliver consumes before it returns.
  std::function<absl::Status(std::size_t slot)> slot_free{};
  // Memory for slot number `slot`, page-aligned and valid for the whole call. Null: the stream's own. An error is not
  // the stream's if two slots are there already: it goes on with those.
  std::function<absl::StatusOr<std::byte*>(std::size_t slot, std::size_t nbytes)> slot_memory{};
  // Called on the caller's thread after each piece, with the bytes delivered so far; false cancels (CANCELLED).
  std::function<bool(std::uint64_t done_bytes)> progress{};
};

// Returns when all bytes are delivered and consumed, or at the first error with no read and no delivery in flight.
// Errors as DiskFile::Read, and whatever the functions return. What they throw passes through, after the same
// clean-up. Targets may lie in different files; overlapping destinations are filled in no particular order.
absl::Status StreamFromDisk(absl::Span<const StreamTarget> targets, const StreamOptions& options);

}  // namespace packalloc

#endif  // PACKALLOC_LIB_DISK_STREAM_H_
