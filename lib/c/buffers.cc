// The C functions on buffers.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "lib/c/handles.h"
#include "lib/c/last_error.h"
#include "lib/c/outputs.h"
#include "lib/checked_math.h"
#include "packalloc/backends/disk.h"
#include "packalloc/c/packalloc.h"
#include "packalloc/copy.h"
#include "packalloc/disk_file.h"

namespace packalloc {
namespace {

absl::StatusOr<BufferPin> FindBuffer(const packalloc_buffer* handle) { return Buffers().Find(NumberOf(handle)); }

BufferRef RefOf(const BufferPin& pin) { return {pin->allocator, pin->buffer}; }

absl::Status MakeView(packalloc_buffer* buffer, std::size_t nbytes, std::size_t byte_offset, packalloc_buffer** out) {
  absl::StatusOr<BufferPin> from = FindBuffer(buffer);
  if (!from.ok()) return from.status();
  absl::StatusOr<AnyBuf> view = (*from)->allocator.offset((*from)->buffer, nbytes, byte_offset);
  if (!view.ok()) return view.status();
  BufferEntry entry{(*from)->allocator, *std::move(view), (*from)->spec, std::nullopt};
  entry.base.emplace(*std::move(from));
  absl::StatusOr<std::uint64_t> number = Buffers().Add(std::move(entry));
  if (!number.ok()) return number.status();
  *out = HandleOf<packalloc_buffer>(*number);
  return absl::OkStatus();
}

// Buffers of the DISK backend, each file opened once.
class Files {
 public:
  absl::StatusOr<BufferRef> Extent(const char* path, std::uint64_t offset, std::size_t nbytes) {
    if (path == nullptr) return absl::InvalidArgumentError("the path is NULL");
    auto found = files_.find(path);
    if (found == files_.end()) {
      absl::StatusOr<Allocator<DiskExtent>> record = DiskAllocator(path);
      if (!record.ok()) return record.status();
      absl::StatusOr<PackedAllocator> packed = Pack(*std::move(record));
      if (!packed.ok()) return packed.status();
      found = files_.emplace(path, *std::move(packed)).first;
    }
    const std::optional<std::uint64_t> end = CheckedAdd<std::uint64_t>(offset, nbytes);
    if (!end) {
      return absl::OutOfRangeError(
          absl::StrCat(path, ": ", nbytes, " bytes from ", offset, " on are outside any file"));
    }
    const PackedAllocator& disk = found->second;
    absl::StatusOr<AnyBuf> upto = disk.alloc(*end);
    if (absl::IsOutOfRange(upto.status())) return OutOfRange(path, offset, nbytes);
    if (!upto.ok()) return upto.status();
    absl::StatusOr<AnyBuf> bytes = disk.offset(*upto, nbytes, offset);
    if (!bytes.ok()) return bytes.status();
    return BufferRef{disk, *std::move(bytes)};
  }

 private:
  // With the bytes that the caller asked for, of which the record knows only the end.
  static absl::Status OutOfRange(const char* path, std::uint64_t offset, std::size_t nbytes) {
    const absl::StatusOr<std::shared_ptr<DiskFile>> file = DiskFile::Open(path);
    if (!file.ok()) return file.status();
    absl::Status inside = (*file)->CheckRange(offset, nbytes);
    return inside.ok() ? absl::OutOfRangeError(absl::StrCat(path, ": the file grew meanwhile")) : inside;
  }

  std::map<std::string, PackedAllocator> files_;
};

absl::Status Load(absl::Span<const packalloc_load_item> items, packalloc_progress progress, void* user_data) {
  Files files;
  std::vector<BufferPin> pins;
  std::vector<CopyPair> pairs;
  pins.reserve(items.size());
  pairs.reserve(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    const auto failed = [i](const absl::Status& why) {
      return absl::Status(why.code(), absl::StrCat("item ", i, ": ", why.message()));
    };
    absl::StatusOr<BufferPin> pin = FindBuffer(items[i].dest);
    if (!pin.ok()) return failed(pin.status());
    absl::StatusOr<BufferRef> source = files.Extent(items[i].path, items[i].offset, (*pin)->buffer.nbytes());
    if (!source.ok()) return failed(source.status());
    pairs.push_back({RefOf(*pin), *std::move(source)});
    pins.push_back(*std::move(pin));
  }
  CopyAllOptions options;
  if (progress != nullptr) {
    options.progress = [=](std::uint64_t done, std::uint64_t total) { return progress(user_data, done, total) != 0; };
  }
  return CopyAll(pairs, options).status();
}

}  // namespace
}  // namespace packalloc

using packalloc::BufferPin;
using packalloc::Call;
using packalloc::CallFor;
using packalloc::FindBuffer;
using packalloc::NumberOf;

extern "C" {

packalloc_status packalloc_alloc(packalloc_allocator* allocator, size_t nbytes, const packalloc_buffer_spec* spec,
                                 packalloc_buffer** out) {
  return CallFor(out, [&]() -> absl::Status {
    absl::StatusOr<packalloc::PackedAllocator> found = packalloc::FindAllocator(NumberOf(allocator));
    if (!found.ok()) return found.status();
    absl::StatusOr<packalloc::BufferSpec> wanted = packalloc::SpecFromC(spec);
    if (!wanted.ok()) return wanted.status();
    absl::StatusOr<std::uint64_t> number = packalloc::AllocEntry(*found, nbytes, *wanted);
    if (!number.ok()) return number.status();
    *out = packalloc::HandleOf<packalloc_buffer>(*number);
    return absl::OkStatus();
  });
}

packalloc_status packalloc_offset(packalloc_buffer* buffer, size_t nbytes, size_t byte_offset, packalloc_buffer** out) {
  return CallFor(out, [&] { return packalloc::MakeView(buffer, nbytes, byte_offset, out); });
}

packalloc_status packalloc_free(packalloc_buffer* buffer) {
  return Call([&] { return packalloc::FreeEntry(NumberOf(buffer), std::nullopt, std::nullopt); });
}

packalloc_status packalloc_nbytes(packalloc_buffer* buffer, size_t* out) {
  return Call([&]() -> absl::Status {
    if (out == nullptr) return packalloc::NoOutput();
    absl::StatusOr<BufferPin> pin = FindBuffer(buffer);
    if (!pin.ok()) return pin.status();
    *out = (*pin)->buffer.nbytes();
    return absl::OkStatus();
  });
}

packalloc_status packalloc_copyin(packalloc_buffer* dest, const void* src, size_t nbytes) {
  return Call([&]() -> absl::Status {
    absl::StatusOr<BufferPin> pin = FindBuffer(dest);
    if (!pin.ok()) return pin.status();
    if (src == nullptr && nbytes != 0) return absl::InvalidArgumentError("copyin: the source is NULL");
    return (*pin)->allocator.copyin((*pin)->buffer, {static_cast<const std::byte*>(src), nbytes});
  });
}

packalloc_status packalloc_copyout(void* dest, packalloc_buffer* src, size_t nbytes) {
  return Call([&]() -> absl::Status {
    absl::StatusOr<BufferPin> pin = FindBuffer(src);
    if (!pin.ok()) return pin.status();
    if (dest == nullptr && nbytes != 0) return absl::InvalidArgumentError("copyout: the destination is NULL");
    return (*pin)->allocator.copyout({static_cast<std::byte*>(dest), nbytes}, (*pin)->buffer);
  });
}

packalloc_status packalloc_addr(packalloc_buffer* buffer, packalloc_device_address* out) {
  return Call([&]() -> absl::Status {
    if (out == nullptr) return packalloc::NoOutput();
    absl::StatusOr<BufferPin> pin = FindBuffer(buffer);
    if (!pin.ok()) return pin.status();
    absl::StatusOr<packalloc::DeviceAddress> address = (*pin)->allocator.addr((*pin)->buffer);
    if (!address.ok()) return address.status();
    *out = {address->value, address->byte_offset};
    return absl::OkStatus();
  });
}

packalloc_status packalloc_host_ptr(packalloc_buffer* buffer, void** out) {
  return CallFor(out, [&]() -> absl::Status {
    absl::StatusOr<BufferPin> pin = FindBuffer(buffer);
    if (!pin.ok()) return pin.status();
    absl::StatusOr<std::byte*> pointer = (*pin)->allocator.host_ptr((*pin)->buffer);
    if (!pointer.ok()) return pointer.status();
    *out = *pointer;
    return absl::OkStatus();
  });
}

packalloc_status packalloc_transfer(packalloc_buffer* dest, packalloc_buffer* src, size_t nbytes) {
  return Call([&]() -> absl::Status {
    absl::StatusOr<BufferPin> to = FindBuffer(dest);
    if (!to.ok()) return to.status();
    absl::StatusOr<BufferPin> from = FindBuffer(src);
    if (!from.ok()) return from.status();
    return (*to)->allocator.transfer((*to)->buffer, (*from)->buffer, nbytes);
  });
}

packalloc_status packalloc_copy(packalloc_buffer* dest, packalloc_buffer* src, const char** path) {
  return Call([&]() -> absl::Status {
    absl::StatusOr<BufferPin> to = FindBuffer(dest);
    if (!to.ok()) return to.status();
    absl::StatusOr<BufferPin> from = FindBuffer(src);
    if (!from.ok()) return from.status();
    absl::StatusOr<packalloc::CopyReport> copied = packalloc::Copy(packalloc::RefOf(*to), packalloc::RefOf(*from));
    if (!copied.ok()) return copied.status();
    if (path != nullptr) *path = packalloc::ToString(copied->path);
    return absl::OkStatus();
  });
}

packalloc_status packalloc_load(const packalloc_load_item* items, size_t count, packalloc_progress progress,
                                void* user_data) {
  return Call([&]() -> absl::Status {
    if (items == nullptr && count != 0) return absl::InvalidArgumentError("the array of items is NULL");
    return packalloc::Load({items, count}, progress, user_data);
  });
}

}  // extern "C"
