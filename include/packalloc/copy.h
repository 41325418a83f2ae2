// Copy: bytes between any two buffers, on whatever backends, by the best way that both sides know. CopyAll: many at
// once without draining the pipeline between them, with progress and cancellation; that is how weights are loaded.
//
//   absl::StatusOr<packalloc::CopyReport> copied = packalloc::Copy({gpu, dest}, {cpu, src});
//   std::cout << packalloc::ToString(copied->path);                                // "direct copyin"
//   packalloc::CopyAllOptions options;
//   options.progress = [](std::uint64_t done, std::uint64_t total) { draw(done, total); return !interrupted; };
//   std::vector<packalloc::CopyPair> pairs = {{{gpu, w1}, {disk, extent1}}, {{gpu, w2}, {disk, extent2}}};
//   absl::StatusOr<packalloc::CopyReport> loaded = packalloc::CopyAll(pairs, options);
#ifndef PACKALLOC_COPY_H_
#define PACKALLOC_COPY_H_

#include <cstddef>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "packalloc/packed_allocator.h"

namespace packalloc {

// The way a copy went; of several, the last in this list.
enum class CopyPath {
  kNothing,   // zero bytes, or a buffer onto itself
  kTransfer,  // transfer inside one domain
  kFromDisk,  // from a DISK buffer by copy_from_disk, or streamed as that does
  kMemmove,   // both sides are host memory
  kCopyIn,    // the source is host memory: one copyin
  kCopyOut,   // the destination is host memory: one copyout
  kStaged,    // through host memory in chunks, the next one read while the last is written
};
const char* ToString(CopyPath path);

// A buffer and the allocator that it belongs to.
struct BufferRef {
  PackedAllocator allocator;
  AnyBuf buffer;
};

struct CopyOptions {
  // Bytes that a staged copy may have between the two sides at any time: two to eight chunks. A side without `offset`
  // cannot be copied in chunks and is staged whole.
  std::size_t staging_bytes = std::size_t{16} << 20;
};

struct CopyReport {
  CopyPath path = CopyPath::kNothing;
  std::uint64_t bytes = 0;
  std::size_t peak_staging_bytes = 0;
};

// Copies all of `src` to all of `dest`, as if by memmove where they overlap. Ordered as copyin on return.
// INVALID_ARGUMENT where the sizes differ or a handle is not its allocator's (nothing is written); else what the two
// sides answer, and then the bytes of `dest` are undefined. Thread-safe as the two records are. Follows tinygrad's
// Buffer.copyin and transfer.
absl::StatusOr<CopyReport> Copy(const BufferRef& dest, const BufferRef& src, const CopyOptions& options = {});

struct CopyPair {
  BufferRef dest;
  BufferRef src;
};

struct CopyAllOptions {
  std::size_t staging_bytes = std::size_t{64} << 20;  // as in CopyOptions, for all pairs together
  // Called on the caller's thread with growing `done` at least once per 64 MiB and, last, with done == total; a pair
  // one of whose sides has no `offset` is copied in one piece. False cancels: CopyAll returns CANCELLED with no read
  // and no copy in flight.
  std::function<bool(std::uint64_t done, std::uint64_t total)> progress{};
};

// As Copy for each pair. Every pair is checked before the first byte is written. Pairs must not depend on each other:
// they are copied in no particular order.
absl::StatusOr<CopyReport> CopyAll(absl::Span<const CopyPair> pairs, const CopyAllOptions& options = {});

}  // namespace packalloc

#endif  // PACKALLOC_COPY_H_
