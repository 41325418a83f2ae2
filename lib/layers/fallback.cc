#include "packalloc/layers/fallback.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/layers/buffer_map.h"
#include "lib/layers/stack_rules.h"

namespace packalloc {
namespace {

class Pair : public FallbackControl {
 public:
  Pair(AnyRecord first, AnyRecord second) : first_(std::move(first)), second_(std::move(second)) {}

  std::size_t second_buffers() const override { return second_buffers_.load(); }
  std::size_t second_bytes() const override { return second_bytes_.load(); }

  absl::StatusOr<AnyBuf> Alloc(std::size_t nbytes, const BufferSpec& spec) {
    absl::StatusOr<AnyBuf> buf = first_.alloc(nbytes, spec);
    const bool exhausted = buf.status().code() == absl::StatusCode::kResourceExhausted;
    if (exhausted) {
      const absl::Status refused = buf.status();
      buf = second_.alloc(nbytes, spec);
      if (!buf.ok()) {
        return absl::Status(buf.status().code(), absl::StrCat(refused.message(), "; and of the fallback, ",
                                                              second_.traits.name, ": ", buf.status().message()));
      }
    }
    if (!buf.ok() || nbytes == 0) return buf;
    const AnyRecord& maker = exhausted ? second_ : first_;
    try {
      made_.Add(*buf, maker.addr(*buf), nbytes, Maker{exhausted}, spec.external_ptr.has_value());
    } catch (...) {
      FreeQuietly(maker, *buf, nbytes, spec);
      throw;
    }
    if (exhausted) Count(1, nbytes);
    return buf;
  }

  absl::Status Free(const AnyBuf& buf, std::size_t nbytes, const BufferSpec& spec) {
    const auto found = Find(buf);
    if (!found) return first_.free(buf, nbytes, spec);
    const bool second = found.entry->value.second;
    // Before the memory can become another thread's buffer.
    if (!made_.Remove(found.entry)) {
      return absl::FailedPreconditionError(
          absl::StrCat("free of a buffer of ", nbytes, " bytes that another thread is freeing"));
    }
    absl::Status freed;
    try {
      freed = RecordOf(second).free(buf, nbytes, spec);
    } catch (...) {
      made_.Restore(found.entry);
      throw;
    }
    if (!freed.ok()) {
      made_.Restore(found.entry);
    } else if (second) {
      Count(-1, found.entry->nbytes);
    }
    return freed;
  }

  // The record that made the buffer.
  const AnyRecord& Of(const AnyBuf& buf) const {
    const auto found = Find(buf);
    return RecordOf(found && found.entry->value.second);
  }

  absl::Status Transfer(const AnyBuf& dest, const AnyBuf& src, std::size_t nbytes) const {
    const AnyRecord& to = Of(dest);
    const AnyRecord& from = Of(src);
    const bool one_domain = to.traits.transfer_domain != 0 && to.traits.transfer_domain == from.traits.transfer_domain;
    if (&to == &from || one_domain) return to.transfer(dest, src, nbytes);
    constexpr std::size_t kChunk = std::size_t{4} << 20;
    const bool whole = !to.offset || !from.offset;
    std::vector<std::byte> host(whole ? nbytes : std::min(nbytes, kChunk));
    for (std::size_t done = 0; done < nbytes; done += host.size()) {
      const absl::Span<std::byte> chunk = absl::MakeSpan(host).first(std::min(host.size(), nbytes - done));
      absl::StatusOr<AnyBuf> part = whole ? src : from.offset(src, chunk.size(), done);
      if (!part.ok()) return part.status();
      if (absl::Status read = from.copyout(chunk, *part); !read.ok()) return read;
      part = whole ? dest : to.offset(dest, chunk.size(), done);
      if (!part.ok()) return part.status();
      if (absl::Status written = to.copyin(*part, chunk); !written.ok()) return written;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<MemoryInfo> Info() const {
    const absl::StatusOr<MemoryInfo> first = first_.memory_info();
    const absl::StatusOr<MemoryInfo> second = second_.memory_info();
    if (!first.ok() || !second.ok()) return first.ok() ? second : first;
    return MemoryInfo{first->free_bytes + second->free_bytes, first->total_bytes + second->total_bytes};
  }

  absl::Status Synchronize() const {
    absl::Status status;
    if (first_.synchronize) status = first_.synchronize();
    if (second_.synchronize) status.Update(second_.synchronize());
    return status;
  }

 private:
  struct Maker {
    bool second = false;
  };

  const AnyRecord& RecordOf(bool second) const { return second ? second_ : first_; }

  BufferMap<Maker>::Found Find(const AnyBuf& buf) const {
    return made_.Find(buf.serial(), [&] {
      const DeviceAddress at = first_.addr(buf);
      return at == DeviceAddress{} ? second_.addr(buf) : at;
    });
  }

  void Count(std::ptrdiff_t buffers, std::size_t nbytes) {
    second_buffers_ += static_cast<std::size_t>(buffers);
    second_bytes_ += buffers > 0 ? nbytes : std::size_t{0} - nbytes;
  }

  static void FreeQuietly(const AnyRecord& record, const AnyBuf& buf, std::size_t nbytes,
                          const BufferSpec& spec) noexcept {
    try {
      record.free(buf, nbytes, spec).IgnoreError();
    } catch (...) {  // NOLINT(bugprone-empty-catch): the exception under way is told
    }
  }

  const AnyRecord first_;
  const AnyRecord second_;
  BufferMap<Maker> made_;
  std::atomic<std::size_t> second_buffers_{0};
  std::atomic<std::size_t> second_bytes_{0};
};

}  // namespace

absl::StatusOr<AnyRecord> FallbackLayer(AnyRecord first, AnyRecord second) {
  if (first.traits.address_is_pointer != second.traits.address_is_pointer) {
    return absl::InvalidArgumentError(absl::StrCat("Fallback: the addresses of ", first.traits.name, " and ",
                                                   second.traits.name,
                                                   " are not both pointers, so one kernel cannot take both"));
  }
  AnyRecord layered;
  layered.traits = first.traits;
  layered.traits.min_alignment = std::min(first.traits.min_alignment, second.traits.min_alignment);
  layered.traits.max_alloc_bytes = std::max(first.traits.max_alloc_bytes, second.traits.max_alloc_bytes);
  if (first.traits.transfer_domain != second.traits.transfer_domain) layered.traits.transfer_domain = 0;
  layered.controls = first.controls;
  const bool offset = first.offset && second.offset;
  const bool transfer = first.transfer && second.transfer;
  const bool from_disk = first.copy_from_disk && second.copy_from_disk;
  const bool host = first.host_ptr && second.host_ptr;
  const bool info = first.memory_info && second.memory_info;
  const bool waits = first.synchronize || second.synchronize;
  auto pair = std::make_shared<Pair>(std::move(first), std::move(second));
  layered.alloc = [pair](std::size_t nbytes, const BufferSpec& spec) { return pair->Alloc(nbytes, spec); };
  layered.free = [pair](const AnyBuf& buf, std::size_t nbytes, const BufferSpec& spec) {
    return pair->Free(buf, nbytes, spec);
  };
  layered.copyin = [pair](const AnyBuf& dest, absl::Span<const std::byte> src) {
    return pair->Of(dest).copyin(dest, src);
  };
  layered.copyout = [pair](absl::Span<std::byte> dest, const AnyBuf& src) { return pair->Of(src).copyout(dest, src); };
  layered.addr = [pair](const AnyBuf& buf) { return pair->Of(buf).addr(buf); };
  if (offset) {
    layered.offset = [pair](const AnyBuf& buf, std::size_t nbytes, std::size_t byte_offset) {
      return pair->Of(buf).offset(buf, nbytes, byte_offset);
    };
  }
  if (transfer) {
    layered.transfer = [pair](const AnyBuf& dest, const AnyBuf& src, std::size_t nbytes) {
      return pair->Transfer(dest, src, nbytes);
    };
  }
  if (from_disk) {
    layered.copy_from_disk = [pair](const AnyBuf& dest, const DiskExtent& src, std::size_t nbytes) {
      return pair->Of(dest).copy_from_disk(dest, src, nbytes);
    };
  }
  if (host) {
    layered.host_ptr = [pair](const AnyBuf& buf) { return pair->Of(buf).host_ptr(buf); };
  }
  if (info) layered.memory_info = [pair] { return pair->Info(); };
  if (waits) layered.synchronize = [pair] { return pair->Synchronize(); };
  layered.controls.Add<FallbackControl>(std::move(pair));
  MarkLayer(layered, "fallback");
  return layered;
}

absl::StatusOr<PackedAllocator> Fallback(const PackedAllocator& first, const PackedAllocator& second) {
  if (!first || !second) return absl::FailedPreconditionError("a layer was put on an empty PackedAllocator");
  if (!first.same_handle_type(second)) {
    return absl::InvalidArgumentError(absl::StrCat("Fallback: the buffers of ", second.name(),
                                                   " have handles of another type than those of ", first.name()));
  }
  return ApplyLayer(first, [&](AnyRecord inner) { return FallbackLayer(std::move(inner), second.record()); });
}

}  // namespace packalloc
