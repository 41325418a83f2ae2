#include "packalloc/copy.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "lib/checked_math.h"
#include "lib/disk/stream.h"
#include "lib/staged_copy.h"
#include "packalloc/allocator.h"
#include "packalloc/disk_file.h"
#include "packalloc/packed_allocator.h"

namespace packalloc {
namespace {

absl::Status CheckHandle(const BufferRef& ref, const char* role) {
  if (!ref.allocator) return absl::FailedPreconditionError(absl::StrCat("the copy's ", role, " has no allocator"));
  if (ref.buffer.empty()) return absl::InvalidArgumentError(absl::StrCat("the copy's ", role, " is an empty handle"));
  if (ref.buffer.owner() == ref.allocator.id()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the copy's ", role, " does not belong to the allocator ", ref.allocator.name()));
}

absl::Status CheckPair(const BufferRef& dest, const BufferRef& src) {
  if (absl::Status valid = CheckHandle(dest, "destination"); !valid.ok()) return valid;
  if (absl::Status valid = CheckHandle(src, "source"); !valid.ok()) return valid;
  if (dest.buffer.nbytes() == src.buffer.nbytes()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a copy from ", src.buffer.nbytes(), " bytes to ",
                                                 dest.buffer.nbytes(), ": the sizes differ; copy views of one size"));
}

// Where the CPU may touch the buffer now, everything issued before being done; null where it is not host memory.
absl::StatusOr<std::byte*> HostMemory(const BufferRef& ref) {
  if (!ref.allocator.supports_host_ptr()) return nullptr;
  absl::StatusOr<std::byte*> host = ref.allocator.host_ptr(ref.buffer);
  if (absl::IsFailedPrecondition(host.status()) || absl::IsUnimplemented(host.status())) return nullptr;
  if (!host.ok()) return host.status();
  if (absl::Status idle = ref.allocator.synchronize(); !idle.ok()) return idle;
  return *host;
}

const DiskExtent* AsExtent(const BufferRef& ref) { return ref.buffer.get<DiskExtent>(); }

// Whether the two overlap with the destination behind the source, so that a copy in chunks has to begin at the end.
// nullopt where they could overlap and their addresses do not tell.
std::optional<bool> MustRunBackwards(const BufferRef& dest, const BufferRef& src) {
  const auto behind = [&src](std::uint64_t to, std::uint64_t from) {
    return to > from && to - from < src.buffer.nbytes();
  };
  const DiskExtent* to = AsExtent(dest);
  const DiskExtent* from = AsExtent(src);
  if (to != nullptr && from != nullptr && to->file != nullptr && from->file != nullptr) {
    return behind(to->offset, from->offset) && to->file->SameFile(*from->file);
  }
  if (!dest.allocator.same_transfer_domain(src.allocator)) return false;
  const absl::StatusOr<DeviceAddress> writes = dest.allocator.addr(dest.buffer);
  const absl::StatusOr<DeviceAddress> reads = src.allocator.addr(src.buffer);
  if (!writes.ok() || !reads.ok() || writes->value == 0 || reads->value == 0) return std::nullopt;
  if (dest.allocator.traits().address_is_pointer) {
    return behind(writes->value + writes->byte_offset, reads->value + reads->byte_offset);
  }
  return writes->value == reads->value && behind(writes->byte_offset, reads->byte_offset);
}

// Nothing to do: the same buffer, whole.
bool IsItself(const BufferRef& dest, const BufferRef& src) {
  return dest.buffer.owner() == src.buffer.owner() && dest.buffer.serial() == src.buffer.serial() &&
         dest.buffer.serial() != 0 && !dest.buffer.is_view() && !src.buffer.is_view();
}

// Every way but the staged one; kNothing with bytes to copy means that none applies.
absl::StatusOr<CopyPath> CopyDirect(const BufferRef& dest, const BufferRef& src) {
  const std::size_t nbytes = dest.buffer.nbytes();
  if (dest.allocator.same_transfer_domain(src.allocator) && dest.allocator.supports_transfer()) {
    absl::Status moved = dest.allocator.transfer(dest.buffer, src.buffer, nbytes);
    if (!absl::IsUnimplemented(moved)) return moved.ok() ? absl::StatusOr<CopyPath>(CopyPath::kTransfer) : moved;
  }
  if (const DiskExtent* extent = AsExtent(src); extent != nullptr && dest.allocator.supports_copy_from_disk()) {
    absl::Status read = dest.allocator.copy_from_disk(dest.buffer, *extent, nbytes);
    if (!absl::IsUnimplemented(read)) return read.ok() ? absl::StatusOr<CopyPath>(CopyPath::kFromDisk) : read;
  }
  absl::StatusOr<std::byte*> from = HostMemory(src);
  if (!from.ok()) return from.status();
  absl::StatusOr<std::byte*> to = HostMemory(dest);
  if (!to.ok()) return to.status();
  if (*from != nullptr && *to != nullptr) {
    std::memmove(*to, *from, nbytes);
    absl::Status seen = dest.allocator.synchronize();  // by the device, what the CPU wrote
    return seen.ok() ? absl::StatusOr<CopyPath>(CopyPath::kMemmove) : seen;
  }
  if (*from != nullptr) {
    absl::Status copied = dest.allocator.copyin(dest.buffer, {*from, nbytes});
    return copied.ok() ? absl::StatusOr<CopyPath>(CopyPath::kCopyIn) : copied;
  }
  if (*to != nullptr) {
    absl::Status copied = src.allocator.copyout({*to, nbytes}, src.buffer);
    if (copied.ok()) copied = dest.allocator.synchronize();
    return copied.ok() ? absl::StatusOr<CopyPath>(CopyPath::kCopyOut) : copied;
  }
  return CopyPath::kNothing;
}

// Pairs whose source is a file, in one stream.
absl::Status StreamPairs(absl::Span<const CopyPair* const> pairs, std::size_t staging_bytes,
                         const std::function<bool(std::uint64_t)>& progress) {
  std::vector<StreamTarget> targets;
  for (const CopyPair* pair : pairs) {
    const DiskExtent* extent = AsExtent(pair->src);
    if (absl::Status can = CheckExtent(*extent, pair->src.buffer.nbytes()); !can.ok()) return can;
    absl::StatusOr<std::byte*> host = HostMemory(pair->dest);
    if (!host.ok()) return host.status();
    targets.push_back({extent->file.get(), extent->offset, pair->dest.buffer.nbytes(), *host});
  }
  StreamOptions options{.staging_bytes = staging_bytes, .progress = progress};
  options.deliver = [&pairs](std::size_t target, std::size_t offset, absl::Span<const std::byte> bytes,
                             std::size_t) -> absl::Status {
    const BufferRef& dest = pairs[target]->dest;
    if (offset == 0 && bytes.size() == dest.buffer.nbytes()) return dest.allocator.copyin(dest.buffer, bytes);
    absl::StatusOr<AnyBuf> part = dest.allocator.offset(dest.buffer, bytes.size(), offset);
    if (!part.ok()) return part.status();
    return dest.allocator.copyin(*part, bytes);
  };
  if (absl::Status read = StreamFromDisk(targets, options); !read.ok()) return read;
  const PackedAllocator* last = nullptr;  // one wait sees to all buffers of an allocator that follow each other
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const PackedAllocator& dest = pairs[i]->dest.allocator;
    if (targets[i].host == nullptr || (last != nullptr && *last == dest)) continue;
    if (absl::Status seen = dest.synchronize(); !seen.ok()) return seen;
    last = &dest;
  }
  return absl::OkStatus();
}

// Copies one pair in parts, so that progress is told and a cancellation heard in time.
absl::StatusOr<CopyReport> CopyInParts(const CopyPair& pair, std::size_t staging_bytes,
                                       const std::function<bool(std::uint64_t)>& progress) {
  constexpr std::size_t kPart = std::size_t{32} << 20;
  const std::size_t nbytes = pair.dest.buffer.nbytes();
  const bool large = progress && nbytes > kPart && !IsItself(pair.dest, pair.src) &&
                     pair.dest.allocator.supports_offset() && pair.src.allocator.supports_offset();
  // From the right end on, parts are a memmove together as each is by itself.
  const std::optional<bool> backwards = large ? MustRunBackwards(pair.dest, pair.src) : std::nullopt;
  CopyReport report;
  while (report.bytes < nbytes) {
    const std::size_t step = backwards ? std::min<std::size_t>(kPart, nbytes - report.bytes) : nbytes;
    CopyPair part = pair;
    for (BufferRef* side : {&part.dest, &part.src}) {
      if (step == nbytes) break;
      const std::uint64_t at = *backwards ? nbytes - report.bytes - step : report.bytes;
      absl::StatusOr<AnyBuf> view = side->allocator.offset(side->buffer, step, at);
      if (!view.ok()) return view.status();
      side->buffer = *std::move(view);
    }
    absl::StatusOr<CopyReport> copied = Copy(part.dest, part.src, {.staging_bytes = staging_bytes});
    if (!copied.ok()) return copied.status();
    report.bytes += step;
    report.path = copied->path;
    report.peak_staging_bytes = std::max(report.peak_staging_bytes, copied->peak_staging_bytes);
    if (progress && !progress(report.bytes)) return absl::CancelledError("cancelled between two parts of a copy");
  }
  return report;
}

enum class Kind { kStream, kSingle, kStaged };

Kind KindOf(const CopyPair& pair) {
  const PackedAllocator& to = pair.dest.allocator;
  const PackedAllocator& from = pair.src.allocator;
  if (AsExtent(pair.src) != nullptr) {
    const bool cut = to.supports_offset() && AsExtent(pair.dest) == nullptr;
    return cut ? Kind::kStream : Kind::kSingle;
  }
  const bool may_overlap = to.same_transfer_domain(from);  // then each is copied by itself, from its right end
  if (may_overlap) return Kind::kSingle;
  const bool host = to.host_ptr(pair.dest.buffer).ok() || from.host_ptr(pair.src.buffer).ok();
  return host ? Kind::kSingle : Kind::kStaged;
}

}  // namespace

const char* ToString(CopyPath path) {
  switch (path) {
    case CopyPath::kNothing:
      return "nothing to copy";
    case CopyPath::kTransfer:
      return "transfer";
    case CopyPath::kFromDisk:
      return "copy from disk";
    case CopyPath::kMemmove:
      return "memmove";
    case CopyPath::kCopyIn:
      return "direct copyin";
    case CopyPath::kCopyOut:
      return "direct copyout";
    case CopyPath::kStaged:
      return "staged";
  }
  return "unknown";
}

absl::StatusOr<CopyReport> Copy(const BufferRef& dest, const BufferRef& src, const CopyOptions& options) {
  if (absl::Status valid = CheckPair(dest, src); !valid.ok()) return valid;
  CopyReport report{.path = CopyPath::kNothing, .bytes = dest.buffer.nbytes()};
  if (report.bytes == 0 || IsItself(dest, src)) return report;
  absl::StatusOr<CopyPath> path = CopyDirect(dest, src);
  if (!path.ok()) return path.status();
  report.path = *path;
  if (*path != CopyPath::kNothing) return report;
  const CopyPair pair{dest, src};
  const CopyPair* one = &pair;
  absl::StatusOr<std::size_t> peak = StagedCopy(absl::MakeConstSpan(&one, 1), options.staging_bytes,
                                                MustRunBackwards(dest, src).value_or(false), nullptr);
  if (!peak.ok()) return peak.status();
  report.path = CopyPath::kStaged;
  report.peak_staging_bytes = *peak;
  return report;
}

absl::StatusOr<CopyReport> CopyAll(absl::Span<const CopyPair> pairs, const CopyAllOptions& options) {
  std::uint64_t total = 0;
  std::vector<const CopyPair*> of_kind[3];
  for (const CopyPair& pair : pairs) {
    if (absl::Status valid = CheckPair(pair.dest, pair.src); !valid.ok()) return valid;
    total += pair.dest.buffer.nbytes();
    if (pair.dest.buffer.nbytes() != 0) of_kind[static_cast<int>(KindOf(pair))].push_back(&pair);
  }
  CopyReport report{.path = CopyPath::kNothing, .bytes = total};
  std::uint64_t before = 0;  // bytes of the groups that are done
  const std::function<bool(std::uint64_t)> progress =
      options.progress ? [&](std::uint64_t done) { return options.progress(before + done, total); }
                       : std::function<bool(std::uint64_t)>();
  const auto took = [&report](CopyPath path) { report.path = std::max(report.path, path); };

  if (const auto& streamed = of_kind[static_cast<int>(Kind::kStream)]; !streamed.empty()) {
    if (absl::Status copied = StreamPairs(streamed, options.staging_bytes, progress); !copied.ok()) return copied;
    for (const CopyPair* pair : streamed) before += pair->dest.buffer.nbytes();
    took(CopyPath::kFromDisk);
  }
  for (const CopyPair* pair : of_kind[static_cast<int>(Kind::kSingle)]) {
    absl::StatusOr<CopyReport> copied = CopyInParts(*pair, options.staging_bytes, progress);
    if (!copied.ok()) return copied.status();
    took(copied->path);
    report.peak_staging_bytes = std::max(report.peak_staging_bytes, copied->peak_staging_bytes);
    before += copied->bytes;
  }
  if (const auto& staged = of_kind[static_cast<int>(Kind::kStaged)]; !staged.empty()) {
    absl::StatusOr<std::size_t> peak = StagedCopy(staged, options.staging_bytes, false, progress);
    if (!peak.ok()) return peak.status();
    report.peak_staging_bytes = std::max(report.peak_staging_bytes, *peak);
    took(CopyPath::kStaged);
  }
  if (total == 0 && options.progress) options.progress(0, 0);
  return report;
}

}  // namespace packalloc
