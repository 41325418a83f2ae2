// PackedAllocator: an Allocator<Buf> with Buf hidden, so that one engine holds allocators of any backend; its buffers
// are AnyBuf. OCaml's `Pack : 'buf t -> packed`, as in tolk. The box knows each buffer's owner and size, so it checks
// owner, type, ranges, zero sizes and the size given to free, once for every backend.
//
//   absl::StatusOr<packalloc::PackedAllocator> device = packalloc::Pack(packalloc::CpuAllocator());
//   absl::StatusOr<packalloc::AnyBuf> buf = device->alloc(1024);
//   std::vector<std::byte> host(1024);
//   absl::Status written = device->copyin(*buf, host);
//   absl::Status freed = device->free(*buf, 1024);
//   if (const packalloc::CpuBuf* cpu = buf->get<packalloc::CpuBuf>()) use(cpu->data);        // the typed handle
//   if (auto record = device->unpack<packalloc::CpuBuf>()) use(record->alloc);               // OCaml's match
#ifndef PACKALLOC_PACKED_ALLOCATOR_H_
#define PACKALLOC_PACKED_ALLOCATOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <typeinfo>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "packalloc/allocator.h"
#include "packalloc/any_buf.h"

namespace packalloc {

// A record over boxed handles: what layers are written in. It checks the type of each handle, not its owner or size.
using AnyRecord = Allocator<AnyBuf>;

namespace internal {

struct PackedState;

// The functors with which the record's two hot members are made by Erase, and by layers that want it: a packed
// allocator whose record's `alloc` (or `free`) is one calls it without the std::function, and has the result's fields
// still in registers. A layer on top that replaces the member ends that by itself.
struct DirectAlloc {
  using Call = absl::StatusOr<AnyBuf> (*)(void* object, std::size_t nbytes, const BufferSpec& spec);
  std::shared_ptr<void> object;
  Call call = nullptr;
  absl::StatusOr<AnyBuf> operator()(std::size_t nbytes, const BufferSpec& spec) const;
};
struct DirectFree {
  using Call = absl::Status (*)(void* object, const AnyBuf& buf, std::size_t nbytes, const BufferSpec& spec);
  std::shared_ptr<void> object;
  Call call = nullptr;
  absl::Status operator()(const AnyBuf& buf, std::size_t nbytes, const BufferSpec& spec) const {
    return call(object.get(), buf, nbytes, spec);
  }
};
template <typename Buf>
struct TypedCalls;

// What a packed allocator shares with its copies.
struct PackedState {
  AnyRecord record;
  const BufType* type = nullptr;
  std::shared_ptr<const void> typed_record;  // the Allocator<Buf> itself where no layer lies on it, else null
  // Of the record's DirectAlloc and DirectFree; the calls are null where it has other functors.
  DirectAlloc::Call direct_alloc = nullptr;
  DirectFree::Call direct_free = nullptr;
  void* alloc_object = nullptr;
  void* free_object = nullptr;
  std::size_t max_alloc_bytes = 0;
  std::uint64_t id = 0;  // transfer domain in the upper half, so that a handle tells its domain
};

}  // namespace internal

// Has the members of the record, over AnyBuf, with every handle checked first: INVALID_ARGUMENT for one that is empty,
// of another type or of another allocator; OUT_OF_RANGE for bytes outside it; UNIMPLEMENTED for an optional member that
// the record left empty. An operation on zero bytes succeeds without calling the record. Cheap to copy: copies share
// one state and compare equal. Default-constructed or moved-from it is empty, and every call is FAILED_PRECONDITION.
// Thread-safe as the record is.
class PackedAllocator {
 public:
  PackedAllocator() = default;

  // INVALID_ARGUMENT for a spec that ValidateSpec refuses and for nbytes above PTRDIFF_MAX; RESOURCE_EXHAUSTED above
  // traits().max_alloc_bytes; else what the record answers.
  absl::StatusOr<AnyBuf> alloc(std::size_t nbytes, const BufferSpec& spec = {}) const;
  // `nbytes` and `spec` as given to alloc: another size is INVALID_ARGUMENT (another spec is the checker layer's to
  // find), and so is a view. Freeing twice is undefined here; Buffer and the checker layer make it an error.
  absl::Status free(const AnyBuf& buf, std::size_t nbytes, const BufferSpec& spec = {}) const;
  absl::Status copyin(const AnyBuf& dest, absl::Span<const std::byte> src) const;
  absl::Status copyout(absl::Span<std::byte> dest, const AnyBuf& src) const;
  // {0, 0} for a buffer of zero bytes.
  absl::StatusOr<DeviceAddress> addr(const AnyBuf& buf) const;
  absl::StatusOr<AnyBuf> offset(const AnyBuf& buf, std::size_t nbytes, std::size_t byte_offset) const;
  // Takes buffers of any allocator of the same transfer domain.
  absl::Status transfer(const AnyBuf& dest, const AnyBuf& src, std::size_t nbytes) const;
  absl::Status copy_from_disk(const AnyBuf& dest, const DiskExtent& src, std::size_t nbytes) const;
  // Null for a buffer of zero bytes.
  absl::StatusOr<std::byte*> host_ptr(const AnyBuf& buf) const;
  absl::StatusOr<MemoryInfo> memory_info() const;
  // OK where the record has no synchronize: everything was finished on return.
  absl::Status synchronize() const;

  bool supports_offset() const;
  bool supports_transfer() const;
  bool supports_copy_from_disk() const;
  bool supports_host_ptr() const;

  // True if both have handles of the same type.
  bool same_handle_type(const PackedAllocator& other) const;
  // True if transfer between this allocator's buffers and `other`'s is possible.
  bool same_transfer_domain(const PackedAllocator& other) const;

  explicit operator bool() const { return state_ != nullptr; }
  // Never reused in the process; 0 when empty. The owner() of this allocator's buffers.
  std::uint64_t id() const;
  // Of the outermost layer. An empty allocator has default traits. Valid as long as this object.
  const AllocatorTraits& traits() const;
  const std::string& name() const { return traits().name; }  // the device's; Find tells which layers lie on it
  const Controls& controls() const;

  // The typed record (through whatever layers lie on it), or nullopt where the type is another. Shares this state.
  template <typename Buf>
  std::optional<Allocator<Buf>> unpack() const;

  // For authors of layers: the record over boxed handles, and a new allocator (with an id of its own) whose record is
  // `layered`, over handles of the same type as this one's. Empty gives empty; INVALID_ARGUMENT as Pack.
  const AnyRecord& record() const;
  absl::StatusOr<PackedAllocator> WithRecord(AnyRecord layered) const;

  friend bool operator==(const PackedAllocator&, const PackedAllocator&) = default;

  // Used by Pack.
  static absl::StatusOr<PackedAllocator> FromRecord(AnyRecord record, const internal::BufType* type,
                                                    std::shared_ptr<const void> typed_record);

 private:
  absl::StatusOr<AnyBuf> AllocUncommon(std::size_t nbytes, const BufferSpec& spec) const;
  absl::StatusOr<AnyBuf> AllocUnchecked(std::size_t nbytes, const BufferSpec& spec) const;
  absl::Status CheckFree(const AnyBuf& buf, std::size_t nbytes) const;
  absl::Status CheckOwned(const AnyBuf& buf, const char* operation) const;
  absl::Status CheckDomain(const AnyBuf& buf, const char* operation, const char* role) const;
  AnyBuf EmptyBuffer() const;
  const void* TypedRecord(const internal::BufType* type) const;
  bool HoldsType(const internal::BufType* type) const;

  std::shared_ptr<internal::PackedState> state_;
};

// As Find(record).
template <typename T>
std::shared_ptr<T> Find(const PackedAllocator& packed) {
  return packed.controls().Find<T>();
}

// The record with its handles boxed; empty members stay empty. Keeps `record`'s state alive.
template <typename Buf>
AnyRecord Erase(std::shared_ptr<const Allocator<Buf>> record);

// The inverse: a typed record over a boxed one whose handles are Bufs.
template <typename Buf>
Allocator<Buf> Typed(AnyRecord record);

// Hides Buf. INVALID_ARGUMENT naming the member where a required one (alloc, free, copyin, copyout, addr) is unset, or
// where traits.min_alignment is not a power of two. The result keeps the record's state alive. Thread-safe.
template <typename Buf>
absl::StatusOr<PackedAllocator> Pack(Allocator<Buf> record);

// Applies `layer`, a function from AnyRecord to absl::StatusOr<AnyRecord>, to a packed allocator or to a typed record.
template <typename Layer>
absl::StatusOr<PackedAllocator> ApplyLayer(const PackedAllocator& packed, Layer&& layer) {
  if (!packed) return absl::FailedPreconditionError("a layer was put on an empty PackedAllocator");
  absl::StatusOr<AnyRecord> layered = std::forward<Layer>(layer)(packed.record());
  if (!layered.ok()) return layered.status();
  return packed.WithRecord(*std::move(layered));
}
template <typename Buf, typename Layer>
absl::StatusOr<Allocator<Buf>> ApplyLayer(Allocator<Buf> record, Layer&& layer) {
  absl::StatusOr<AnyRecord> layered =
      std::forward<Layer>(layer)(Erase<Buf>(std::make_shared<const Allocator<Buf>>(std::move(record))));
  if (!layered.ok()) return layered.status();
  return Typed<Buf>(*std::move(layered));
}

// ---- implementation ----

namespace internal {

inline absl::StatusOr<AnyBuf> DirectAlloc::operator()(std::size_t nbytes, const BufferSpec& spec) const {
  absl::StatusOr<AnyBuf> buf = call(object.get(), nbytes, spec);
  if (buf.ok()) [[likely]]
    buf->nbytes_ = nbytes;
  return buf;
}

// The hot members of an Allocator<Buf> over boxed handles.
template <typename Buf>
struct TypedCalls {
  static absl::StatusOr<AnyBuf> Alloc(void* record, std::size_t nbytes, const BufferSpec& spec) {
    absl::StatusOr<Buf> buf = static_cast<const Allocator<Buf>*>(record)->alloc(nbytes, spec);
    if (!buf.ok()) [[unlikely]]
      return std::move(buf).status();
    return absl::StatusOr<AnyBuf>(absl::in_place, std::in_place_type<Buf>, *std::move(buf), nbytes);
  }
  static absl::Status Free(void* record, const AnyBuf& buf, std::size_t nbytes, const BufferSpec& spec) {
    if (buf.type_ != &BufTypeOf<Buf>::kType) [[unlikely]]
      return FreeOtherType(record, buf, nbytes, spec);
    return static_cast<const Allocator<Buf>*>(record)->free(*BufTypeOf<Buf>::Get(buf.storage_), nbytes, spec);
  }
  // Apart, so that the usual way saves no registers for it.
  [[gnu::noinline]] static absl::Status FreeOtherType(void* record, const AnyBuf& buf, std::size_t nbytes,
                                                      const BufferSpec& spec) {
    const Buf* typed = buf.get<Buf>();
    if (typed == nullptr) return WrongType(buf, typeid(Buf));
    return static_cast<const Allocator<Buf>*>(record)->free(*typed, nbytes, spec);
  }
};

}  // namespace internal

template <typename Buf>
AnyRecord Erase(std::shared_ptr<const Allocator<Buf>> record) {
  AnyRecord any;
  any.traits = record->traits;
  any.controls = record->controls;
  const auto object = std::const_pointer_cast<Allocator<Buf>>(record);  // not written through
  if (record->alloc) any.alloc = internal::DirectAlloc{object, &internal::TypedCalls<Buf>::Alloc};
  if (record->free) any.free = internal::DirectFree{object, &internal::TypedCalls<Buf>::Free};
  if (record->copyin) {
    any.copyin = [record](const AnyBuf& dest, absl::Span<const std::byte> src) -> absl::Status {
      const Buf* typed = dest.get<Buf>();
      if (typed == nullptr) [[unlikely]]
        return internal::WrongType(dest, typeid(Buf));
      return record->copyin(*typed, src);
    };
  }
  if (record->copyout) {
    any.copyout = [record](absl::Span<std::byte> dest, const AnyBuf& src) -> absl::Status {
      const Buf* typed = src.get<Buf>();
      if (typed == nullptr) [[unlikely]]
        return internal::WrongType(src, typeid(Buf));
      return record->copyout(dest, *typed);
    };
  }
  if (record->addr) {
    any.addr = [record](const AnyBuf& buf) {
      const Buf* typed = buf.get<Buf>();
      return typed == nullptr ? DeviceAddress{} : record->addr(*typed);
    };
  }
  if (record->offset) {
    any.offset = [record](const AnyBuf& buf, std::size_t nbytes, std::size_t byte_offset) -> absl::StatusOr<AnyBuf> {
      const Buf* typed = buf.get<Buf>();
      if (typed == nullptr) return internal::WrongType(buf, typeid(Buf));
      absl::StatusOr<Buf> view = record->offset(*typed, nbytes, byte_offset);
      if (!view.ok()) return std::move(view).status();
      AnyBuf part = AnyBuf::Of<Buf>(*std::move(view), nbytes);
      part.IdentifyAs(buf);
      return part;
    };
  }
  if (record->transfer) {
    any.transfer = [record](const AnyBuf& dest, const AnyBuf& src, std::size_t nbytes) -> absl::Status {
      const Buf* to = dest.get<Buf>();
      const Buf* from = src.get<Buf>();
      if (to == nullptr || from == nullptr) return internal::WrongType(to == nullptr ? dest : src, typeid(Buf));
      return record->transfer(*to, *from, nbytes);
    };
  }
  if (record->copy_from_disk) {
    any.copy_from_disk = [record](const AnyBuf& dest, const DiskExtent& src, std::size_t nbytes) -> absl::Status {
      const Buf* typed = dest.get<Buf>();
      if (typed == nullptr) return internal::WrongType(dest, typeid(Buf));
      return record->copy_from_disk(*typed, src, nbytes);
    };
  }
  if (record->host_ptr) {
    any.host_ptr = [record](const AnyBuf& buf) -> absl::StatusOr<std::byte*> {
      const Buf* typed = buf.get<Buf>();
      if (typed == nullptr) return internal::WrongType(buf, typeid(Buf));
      return record->host_ptr(*typed);
    };
  }
  if (record->memory_info) {
    any.memory_info = [record] { return record->memory_info(); };
  }
  if (record->synchronize) {
    any.synchronize = [record] { return record->synchronize(); };
  }
  return any;
}

template <typename Buf>
absl::StatusOr<PackedAllocator> Pack(Allocator<Buf> record) {
  auto shared = std::make_shared<const Allocator<Buf>>(std::move(record));
  AnyRecord boxed = Erase<Buf>(shared);
  return PackedAllocator::FromRecord(std::move(boxed), &internal::BufTypeOf<Buf>::kType, std::move(shared));
}
template <>
inline absl::StatusOr<PackedAllocator> Pack(AnyRecord record) {
  return PackedAllocator::FromRecord(std::move(record), &internal::BufTypeOf<AnyBuf>::kType, nullptr);
}

template <>
inline AnyRecord Erase<AnyBuf>(std::shared_ptr<const Allocator<AnyBuf>> record) {
  return *record;
}

template <typename Buf>
Allocator<Buf> Typed(AnyRecord boxed) {
  auto record = std::make_shared<const AnyRecord>(std::move(boxed));
  const auto box = [](const Buf& buf) { return AnyBuf::Of<Buf>(buf, AnyBuf::kUnknownSize); };
  const auto unbox = [](const absl::StatusOr<AnyBuf>& any) -> absl::StatusOr<Buf> {
    if (!any.ok()) return any.status();
    const Buf* typed = any->template get<Buf>();
    if (typed == nullptr) return internal::WrongType(*any, typeid(Buf));
    return *typed;
  };
  Allocator<Buf> out;
  out.traits = record->traits;
  out.controls = record->controls;
  if (record->alloc) {
    out.alloc = [record, unbox](std::size_t nbytes, const BufferSpec& spec) {
      return unbox(record->alloc(nbytes, spec));
    };
  }
  if (record->free) {
    out.free = [record, box](const Buf& buf, std::size_t nbytes, const BufferSpec& spec) {
      return record->free(box(buf), nbytes, spec);
    };
  }
  if (record->copyin) {
    out.copyin = [record, box](const Buf& dest, absl::Span<const std::byte> src) {
      return record->copyin(box(dest), src);
    };
  }
  if (record->copyout) {
    out.copyout = [record, box](absl::Span<std::byte> dest, const Buf& src) { return record->copyout(dest, box(src)); };
  }
  if (record->addr) {
    out.addr = [record, box](const Buf& buf) { return record->addr(box(buf)); };
  }
  if (record->offset) {
    out.offset = [record, box, unbox](const Buf& buf, std::size_t nbytes, std::size_t byte_offset) {
      return unbox(record->offset(box(buf), nbytes, byte_offset));
    };
  }
  if (record->transfer) {
    out.transfer = [record, box](const Buf& dest, const Buf& src, std::size_t nbytes) {
      return record->transfer(box(dest), box(src), nbytes);
    };
  }
  if (record->copy_from_disk) {
    out.copy_from_disk = [record, box](const Buf& dest, const DiskExtent& src, std::size_t nbytes) {
      return record->copy_from_disk(box(dest), src, nbytes);
    };
  }
  if (record->host_ptr) {
    out.host_ptr = [record, box](const Buf& buf) { return record->host_ptr(box(buf)); };
  }
  out.memory_info = record->memory_info;
  out.synchronize = record->synchronize;
  return out;
}

inline absl::StatusOr<AnyBuf> PackedAllocator::AllocUnchecked(std::size_t nbytes, const BufferSpec& spec) const {
  const internal::PackedState& state = *state_;
  // One result, made in place by the conditional and returned by name: another would cost a move of 72 bytes.
  absl::StatusOr<AnyBuf> buf = state.direct_alloc != nullptr ? state.direct_alloc(state.alloc_object, nbytes, spec)
                                                             : state.record.alloc(nbytes, spec);
  if (buf.ok()) [[likely]] {
    AnyBuf& box = *buf;
    box.owner_ = state.id;
    box.nbytes_ = nbytes;
    box.serial_ = box.Identify();  // without the mark of a view, as a layer may hand out a part of another buffer
  }
  return buf;
}

inline absl::StatusOr<AnyBuf> PackedAllocator::alloc(std::size_t nbytes, const BufferSpec& spec) const {
  // 0 - 1 wraps: one comparison finds zero and too many.
  if (!state_ || nbytes - 1 >= state_->max_alloc_bytes || spec.alignment != 0 || spec.external_ptr.has_value())
      [[unlikely]] {
    return AllocUncommon(nbytes, spec);
  }
  return AllocUnchecked(nbytes, spec);
}

inline absl::Status PackedAllocator::free(const AnyBuf& buf, std::size_t nbytes, const BufferSpec& spec) const {
  // An empty handle has no owner; the serial number of a view is negative, that of a buffer of zero bytes is 0.
  if (!state_ || buf.owner_ != state_->id || nbytes != buf.nbytes_ || static_cast<std::int64_t>(buf.serial_) <= 0)
      [[unlikely]] {
    return CheckFree(buf, nbytes);
  }
  const internal::PackedState& state = *state_;
  if (state.direct_free == nullptr) return state.record.free(buf, nbytes, spec);
  return state.direct_free(state.free_object, buf, nbytes, spec);
}

template <typename Buf>
std::optional<Allocator<Buf>> PackedAllocator::unpack() const {
  const internal::BufType* type = &internal::BufTypeOf<Buf>::kType;
  if (!HoldsType(type)) return std::nullopt;
  if (const void* typed = TypedRecord(type)) return *static_cast<const Allocator<Buf>*>(typed);
  return Typed<Buf>(record());
}

}  // namespace packalloc

#endif  // PACKALLOC_PACKED_ALLOCATOR_H_
