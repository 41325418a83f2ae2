// The pipeline between two buffers that share nothing: one thread reads chunks out of the sources into host memory,
// the caller's thread writes them into the destinations.
#ifndef PACKALLOC_LIB_STAGED_COPY_H_
#define PACKALLOC_LIB_STAGED_COPY_H_

#include <cstddef>
#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "packalloc/copy.h"

namespace packalloc {

// Copies the pairs in order; `backwards` takes each pair's chunks from its end. `progress` as in CopyAllOptions, with
// the bytes of these pairs only. Returns the peak of staged bytes. Nothing is in flight afterwards, also after an error
// or an exception.
absl::StatusOr<std::size_t> StagedCopy(absl::Span<const CopyPair* const> pairs, std::size_t staging_bytes,
                                       bool backwards, const std::function<bool(std::uint64_t done)>& progress);

}  // namespace packalloc

#endif  // PACKALLOC_LIB_STAGED_COPY_H_
