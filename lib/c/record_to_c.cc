// Any packed allocator as a C struct of functions. `self` is a handle of the allocators' table. A buffer is {handle of
// the buffers' table, byte offset, nbytes, whether it is a view}: a view is made anew for each call, as nobody gives
// one back.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "lib/c/disk_source.h"
#include "lib/c/handles.h"
#include "lib/c/last_error.h"
#include "lib/c/outputs.h"
#include "lib/c/sized_struct.h"
#include "lib/checks.h"
#include "packalloc/c/packalloc.h"
#include "packalloc/c_record.h"

namespace packalloc {
namespace {

using Raw = packalloc_raw_buffer;

struct Named {
  BufferPin pin;
  AnyBuf buffer;  // the view, where it is one
  const PackedAllocator& allocator() const { return pin->allocator; }
};

absl::StatusOr<Named> ToNamed(BufferPin pin, const Raw& raw) {
  if (raw.word[3] == 0) {
    AnyBuf buffer = pin->buffer;
    return Named{std::move(pin), std::move(buffer)};
  }
  absl::StatusOr<AnyBuf> view = pin->allocator.offset(pin->buffer, raw.word[2], raw.word[1]);
  if (!view.ok()) return view.status();
  return Named{std::move(pin), *std::move(view)};
}

// A buffer of whatever allocator.
absl::StatusOr<Named> Find(const Raw& raw) {
  absl::StatusOr<BufferPin> pin = Buffers().Find(raw.word[0]);
  if (!pin.ok()) return pin.status();
  return ToNamed(*std::move(pin), raw);
}

// A buffer of the allocator that `self` is an export of.
absl::StatusOr<BufferPin> FindOwn(void* self, const Raw& raw) {
  auto own = Allocators().Find(NumberOf(self));
  if (!own.ok()) return own.status();
  absl::StatusOr<BufferPin> pin = Buffers().Find(raw.word[0]);
  if (pin.ok() && !((*pin)->allocator == **own)) {
    return absl::InvalidArgumentError(absl::StrCat("the buffer is of another allocator, ", (*pin)->allocator.name(),
                                                   ": this struct is an export of ", (*own)->name()));
  }
  return pin;
}

absl::StatusOr<Named> Find(void* self, const Raw& raw) {
  absl::StatusOr<BufferPin> pin = FindOwn(self, raw);
  if (!pin.ok()) return pin.status();
  return ToNamed(*std::move(pin), raw);
}

packalloc_status Alloc(void* self, std::size_t nbytes, const packalloc_buffer_spec* c_spec, Raw* out) {
  return Call([&]() -> absl::Status {
    if (out == nullptr) return NoOutput();
    absl::StatusOr<PackedAllocator> allocator = FindAllocator(NumberOf(self));
    if (!allocator.ok()) return allocator.status();
    absl::StatusOr<BufferSpec> spec = SpecFromC(c_spec);
    if (!spec.ok()) return spec.status();
    absl::StatusOr<std::uint64_t> number = AllocEntry(*allocator, nbytes, *spec);
    if (!number.ok()) return number.status();
    *out = Raw{{*number, 0, 0, 0}};
    return absl::OkStatus();
  });
}

packalloc_status Free(void* self, Raw buffer, std::size_t nbytes, const packalloc_buffer_spec* c_spec) {
  return Call([&]() -> absl::Status {
    if (buffer.word[3] != 0) return absl::InvalidArgumentError("free: the buffer is a view");
    absl::StatusOr<BufferSpec> spec = SpecFromC(c_spec);
    if (!spec.ok()) return spec.status();
    if (absl::Status own = FindOwn(self, buffer).status(); !own.ok()) return own;
    return FreeEntry(buffer.word[0], nbytes, *spec);
  });
}

packalloc_status CopyIn(void* self, Raw dest, const void* src, std::size_t nbytes) {
  return Call([&]() -> absl::Status {
    if (src == nullptr && nbytes != 0) return absl::InvalidArgumentError("copyin: the source is NULL");
    absl::StatusOr<Named> to = Find(self, dest);
    if (!to.ok()) return to.status();
    return to->allocator().copyin(to->buffer, {static_cast<const std::byte*>(src), nbytes});
  });
}

packalloc_status CopyOut(void* self, void* dest, Raw src, std::size_t nbytes) {
  return Call([&]() -> absl::Status {
    if (dest == nullptr && nbytes != 0) return absl::InvalidArgumentError("copyout: the destination is NULL");
    absl::StatusOr<Named> from = Find(self, src);
    if (!from.ok()) return from.status();
    return from->allocator().copyout({static_cast<std::byte*>(dest), nbytes}, from->buffer);
  });
}

packalloc_status Addr(void* self, Raw buffer, packalloc_device_address* out) {
  return Call([&]() -> absl::Status {
    if (out == nullptr) return NoOutput();
    absl::StatusOr<Named> named = Find(self, buffer);
    if (!named.ok()) return named.status();
    absl::StatusOr<DeviceAddress> address = named->allocator().addr(named->buffer);
    if (!address.ok()) return address.status();
    *out = {address->value, address->byte_offset};
    return absl::OkStatus();
  });
}

packalloc_status Offset(void* self, Raw buffer, std::size_t nbytes, std::size_t byte_offset, Raw* out) {
  return Call([&]() -> absl::Status {
    if (out == nullptr) return NoOutput();
    absl::StatusOr<Named> named = Find(self, buffer);
    if (!named.ok()) return named.status();
    // Also to learn whether the backend can: a view of a view lies inside it, so the sum is inside the base.
    absl::StatusOr<AnyBuf> view = named->allocator().offset(named->buffer, nbytes, byte_offset);
    if (!view.ok()) return view.status();
    *out = Raw{{buffer.word[0], buffer.word[1] + byte_offset, nbytes, 1}};
    return absl::OkStatus();
  });
}

packalloc_status Transfer(void* self, Raw dest, Raw src, std::size_t nbytes) {
  return Call([&]() -> absl::Status {
    absl::StatusOr<PackedAllocator> allocator = FindAllocator(NumberOf(self));
    if (!allocator.ok()) return allocator.status();
    absl::StatusOr<Named> to = Find(dest);
    if (!to.ok()) return to.status();
    absl::StatusOr<Named> from = Find(src);
    if (!from.ok()) return from.status();
    return allocator->transfer(to->buffer, from->buffer, nbytes);
  });
}

packalloc_status CopyFromDisk(void* self, Raw dest, const packalloc_disk_source* src, std::size_t nbytes) {
  return Call([&]() -> absl::Status {
    absl::StatusOr<packalloc_disk_source> source = ReadStruct(src, "packalloc_disk_source", Unknown::kIgnore);
    if (!source.ok()) return source.status();
    if (source->read == nullptr) return absl::InvalidArgumentError("packalloc_disk_source.read is NULL");
    if (nbytes > source->nbytes) return CheckCopy("copy_from_disk from the source", nbytes, source->nbytes);
    absl::StatusOr<Named> to = Find(self, dest);
    if (!to.ok()) return to.status();
    const DiskExtent* extent = DiskSource::ExtentOf(*source);
    if (extent != nullptr) return to->allocator().copy_from_disk(to->buffer, *extent, nbytes);
    return CopyFromSource(to->allocator(), to->buffer, *source, nbytes);
  });
}

packalloc_status HostPtr(void* self, Raw buffer, void** out) {
  return Call([&]() -> absl::Status {
    if (out == nullptr) return NoOutput();
    absl::StatusOr<Named> named = Find(self, buffer);
    if (!named.ok()) return named.status();
    absl::StatusOr<std::byte*> pointer = named->allocator().host_ptr(named->buffer);
    if (!pointer.ok()) return pointer.status();
    *out = *pointer;
    return absl::OkStatus();
  });
}

packalloc_status GetMemoryInfo(void* self, packalloc_memory_info* out) {
  return packalloc_get_memory_info(HandleOf<packalloc_allocator>(NumberOf(self)), out);
}
packalloc_status Synchronize(void* self) {
  return packalloc_synchronize(HandleOf<packalloc_allocator>(NumberOf(self)));
}
packalloc_status NativeHandle(void* self, const char* key, void** out) {
  return packalloc_native_handle(HandleOf<packalloc_allocator>(NumberOf(self)), key, out);
}
void Release(void* self) { Allocators().Close(NumberOf(self)).IgnoreError(); }
const char* LastErrorOf(void* /*self*/) { return LastError(); }

}  // namespace

absl::Status ToC(const PackedAllocator& packed, packalloc_record* out) {
  if (absl::StatusOr<std::size_t> size = StructSize(out, kFirstVersion<packalloc_record>, "packalloc_record");
      !size.ok()) {
    return size.status();
  }
  if (!packed) return absl::FailedPreconditionError("an empty PackedAllocator cannot be exported");
  absl::StatusOr<std::uint64_t> number = Allocators().Add(PackedAllocator(packed));
  if (!number.ok()) return number.status();
  packalloc_record record = PACKALLOC_RECORD_INIT;
  record.self = HandleOf<void>(*number);
  record.release = &Release;
  record.name = packed.name().c_str();
  record.min_alignment = packed.traits().min_alignment;
  record.max_alloc_bytes = packed.traits().max_alloc_bytes;
  record.address_is_pointer = packed.traits().address_is_pointer ? 1 : 0;
  record.alloc = &Alloc;
  record.free = &Free;
  record.copyin = &CopyIn;
  record.copyout = &CopyOut;
  record.addr = &Addr;
  if (packed.supports_offset()) record.offset = &Offset;
  if (packed.supports_transfer()) record.transfer = &Transfer;
  if (packed.supports_copy_from_disk()) record.copy_from_disk = &CopyFromDisk;
  if (packed.supports_host_ptr()) record.host_ptr = &HostPtr;
  if (packed.record().memory_info) record.memory_info = &GetMemoryInfo;
  if (packed.record().synchronize) record.synchronize = &Synchronize;
  record.native_handle = &NativeHandle;
  record.last_error = &LastErrorOf;
  return WriteStruct(record, out, "packalloc_record");
}

}  // namespace packalloc
