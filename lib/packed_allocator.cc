#include "packalloc/packed_allocator.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <typeinfo>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "lib/checked_math.h"
#include "lib/checks.h"
#include "packalloc/allocator.h"
#include "packalloc/buffer_spec.h"

namespace packalloc {

namespace internal {

constinit thread_local std::uint64_t next_serial = 0;

std::uint64_t LeaseSerials() {
  static std::atomic<std::uint64_t> next_lease{1};
  next_serial = next_lease.fetch_add(1, std::memory_order_relaxed) * kSerialLease + 1;
  return next_serial++;
}

namespace {

// Handles that a record's Buf cannot express empty (it has no default constructor) carry this one.
struct NoHandle {};

absl::Status EmptyAllocator(const char* operation) {
  return absl::FailedPreconditionError(
      absl::StrCat(operation, " on an empty PackedAllocator (default-constructed or moved from)"));
}

absl::Status Unimplemented(const AllocatorTraits& traits, const char* operation) {
  return absl::UnimplementedError(absl::StrCat(traits.name, " has no ", operation));
}

std::uint64_t NewId(std::uint32_t domain) {
  static std::atomic<std::uint32_t> last{0};
  return (std::uint64_t{domain} << 32) | (last.fetch_add(1, std::memory_order_relaxed) + 1);
}

std::uint32_t DomainOf(std::uint64_t id) { return static_cast<std::uint32_t>(id >> 32); }

}  // namespace
}  // namespace internal

absl::StatusOr<PackedAllocator> PackedAllocator::FromRecord(AnyRecord record, const internal::BufType* type,
                                                            std::shared_ptr<const void> typed_record) {
  const char* missing = !record.alloc     ? "alloc"
                        : !record.free    ? "free"
                        : !record.copyin  ? "copyin"
                        : !record.copyout ? "copyout"
                        : !record.addr    ? "addr"
                                          : nullptr;
  if (missing != nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("the record '", record.traits.name, "' cannot be packed: its member ", missing, " is not set"));
  }
  if (!IsPowerOfTwo(record.traits.min_alignment)) {
    return absl::InvalidArgumentError(absl::StrCat("the record '", record.traits.name,
                                                   "' cannot be packed: traits.min_alignment is ",
                                                   record.traits.min_alignment, ", not a power of two"));
  }
  auto state = std::make_shared<internal::PackedState>();
  if (record.traits.transfer_domain == 0) record.traits.transfer_domain = NewDomain();
  if (record.traits.memory_domain == 0) record.traits.memory_domain = NewDomain();
  state->id = internal::NewId(record.traits.transfer_domain);
  state->max_alloc_bytes = std::min<std::size_t>(record.traits.max_alloc_bytes, PTRDIFF_MAX);
  state->record = std::move(record);
  state->type = type;
  state->typed_record = std::move(typed_record);
  if (const auto* alloc = state->record.alloc.target<internal::DirectAlloc>()) {
    state->direct_alloc = alloc->call;
    state->alloc_object = alloc->object.get();
  }
  if (const auto* free = state->record.free.target<internal::DirectFree>()) {
    state->direct_free = free->call;
    state->free_object = free->object.get();
  }
  PackedAllocator packed;
  packed.state_ = std::move(state);
  return packed;
}

absl::StatusOr<PackedAllocator> PackedAllocator::WithRecord(AnyRecord layered) const {
  if (!state_) return internal::EmptyAllocator("WithRecord");
  return FromRecord(std::move(layered), state_->type, nullptr);
}

absl::Status PackedAllocator::CheckOwned(const AnyBuf& buf, const char* operation) const {
  if (!state_) return internal::EmptyAllocator(operation);
  if (buf.empty()) return internal::WrongType(buf, typeid(void));
  return absl::InvalidArgumentError(absl::StrCat(operation, ": the buffer belongs to another allocator than ", name(),
                                                 " (owner ", buf.owner(), ", this is ", id(), ")"));
}

absl::Status PackedAllocator::CheckDomain(const AnyBuf& buf, const char* operation, const char* role) const {
  if (buf.empty()) return internal::WrongType(buf, typeid(void));
  if (buf.owner_ != state_->id && internal::DomainOf(buf.owner_) != internal::DomainOf(state_->id)) {
    return absl::InvalidArgumentError(absl::StrCat(operation, ": the ", role, " is not in the transfer domain of ",
                                                   name(), "; Copy (packalloc/copy.h) copies between any two"));
  }
  return absl::OkStatus();
}

AnyBuf PackedAllocator::EmptyBuffer() const {
  AnyBuf buf = AnyBuf::Of(internal::NoHandle{}, 0);
  if (state_->type->make_empty != nullptr) {
    state_->type->make_empty(buf.storage_);
    buf.type_ = state_->type;
  }
  buf.owner_ = state_->id;
  return buf;
}

// Whatever keeps `alloc` from its short way.
absl::StatusOr<AnyBuf> PackedAllocator::AllocUncommon(std::size_t nbytes, const BufferSpec& spec) const {
  if (!state_) return internal::EmptyAllocator("alloc");
  if (absl::Status valid = CheckRequest(name(), nbytes, spec); !valid.ok()) return valid;
  if (nbytes > state_->max_alloc_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("alloc of ", nbytes, " bytes: the largest single allocation of ",
                                                     name(), " is ", traits().max_alloc_bytes, " bytes"));
  }
  return nbytes == 0 ? EmptyBuffer() : AllocUnchecked(nbytes, spec);
}

absl::Status PackedAllocator::CheckFree(const AnyBuf& buf, std::size_t nbytes) const {
  if (!state_ || buf.empty() || buf.owner_ != state_->id) return CheckOwned(buf, "free");
  if (buf.is_view()) {
    return absl::InvalidArgumentError("free: the buffer is a view; free the buffer that it was made from");
  }
  return CheckFreeSize(name(), nbytes, buf.nbytes_);
}

absl::Status PackedAllocator::copyin(const AnyBuf& dest, absl::Span<const std::byte> src) const {
  if (!state_ || dest.empty() || dest.owner_ != state_->id) [[unlikely]]
    return CheckOwned(dest, "copyin");
  if (src.size() > dest.nbytes_) [[unlikely]]
    return CheckCopy("copyin", src.size(), dest.nbytes_);
  if (src.empty()) return absl::OkStatus();
  return state_->record.copyin(dest, src);
}

absl::Status PackedAllocator::copyout(absl::Span<std::byte> dest, const AnyBuf& src) const {
  if (!state_ || src.empty() || src.owner_ != state_->id) [[unlikely]]
    return CheckOwned(src, "copyout");
  if (dest.size() > src.nbytes_) [[unlikely]]
    return CheckCopy("copyout", dest.size(), src.nbytes_);
  if (dest.empty()) return absl::OkStatus();
  return state_->record.copyout(dest, src);
}

absl::StatusOr<DeviceAddress> PackedAllocator::addr(const AnyBuf& buf) const {
  if (!state_ || buf.empty() || buf.owner_ != state_->id) [[unlikely]]
    return CheckOwned(buf, "addr");
  if (buf.nbytes_ == 0) return DeviceAddress{};
  return state_->record.addr(buf);
}

absl::StatusOr<AnyBuf> PackedAllocator::offset(const AnyBuf& buf, std::size_t nbytes, std::size_t byte_offset) const {
  if (!state_ || buf.empty() || buf.owner_ != state_->id) [[unlikely]]
    return CheckOwned(buf, "offset");
  if (absl::Status fits = CheckView(name(), nbytes, byte_offset, buf.nbytes_); !fits.ok()) return fits;
  if (!state_->record.offset) return internal::Unimplemented(traits(), "offset");
  absl::StatusOr<AnyBuf> view = EmptyBuffer();
  if (nbytes != 0) view = state_->record.offset(buf, nbytes, byte_offset);
  if (view.ok()) {
    view->owner_ = state_->id;
    view->nbytes_ = nbytes;
    view->serial_ = buf.serial_ | AnyBuf::kViewBit;
  }
  return view;
}

absl::Status PackedAllocator::transfer(const AnyBuf& dest, const AnyBuf& src, std::size_t nbytes) const {
  if (!state_) return internal::EmptyAllocator("transfer");
  if (absl::Status ok = CheckDomain(dest, "transfer", "destination"); !ok.ok()) return ok;
  if (absl::Status ok = CheckDomain(src, "transfer", "source"); !ok.ok()) return ok;
  if (nbytes > dest.nbytes_) return CheckCopy("transfer to the destination", nbytes, dest.nbytes_);
  if (nbytes > src.nbytes_) return CheckCopy("transfer from the source", nbytes, src.nbytes_);
  if (!state_->record.transfer) return internal::Unimplemented(traits(), "transfer");
  if (nbytes == 0) return absl::OkStatus();
  return state_->record.transfer(dest, src, nbytes);
}

absl::Status PackedAllocator::copy_from_disk(const AnyBuf& dest, const DiskExtent& src, std::size_t nbytes) const {
  if (!state_ || dest.empty() || dest.owner_ != state_->id) [[unlikely]]
    return CheckOwned(dest, "copy_from_disk");
  if (nbytes > dest.nbytes_) return CheckCopy("copy_from_disk", nbytes, dest.nbytes_);
  if (nbytes > src.nbytes) {
    return absl::OutOfRangeError(absl::StrCat("copy_from_disk of ", nbytes, " bytes, but the extent has ", src.nbytes));
  }
  if (!state_->record.copy_from_disk) return internal::Unimplemented(traits(), "copy_from_disk");
  if (nbytes == 0) return absl::OkStatus();
  return state_->record.copy_from_disk(dest, src, nbytes);
}

absl::StatusOr<std::byte*> PackedAllocator::host_ptr(const AnyBuf& buf) const {
  if (!state_ || buf.empty() || buf.owner_ != state_->id) [[unlikely]]
    return CheckOwned(buf, "host_ptr");
  if (!state_->record.host_ptr) return internal::Unimplemented(traits(), "host_ptr");
  if (buf.nbytes_ == 0) return nullptr;
  return state_->record.host_ptr(buf);
}

absl::StatusOr<MemoryInfo> PackedAllocator::memory_info() const {
  if (!state_) return internal::EmptyAllocator("memory_info");
  if (!state_->record.memory_info) return internal::Unimplemented(traits(), "memory_info");
  return state_->record.memory_info();
}

absl::Status PackedAllocator::synchronize() const {
  if (!state_) return internal::EmptyAllocator("synchronize");
  return state_->record.synchronize ? state_->record.synchronize() : absl::OkStatus();
}

bool PackedAllocator::supports_offset() const { return state_ && state_->record.offset; }
bool PackedAllocator::supports_transfer() const { return state_ && state_->record.transfer; }
bool PackedAllocator::supports_copy_from_disk() const { return state_ && state_->record.copy_from_disk; }
bool PackedAllocator::supports_host_ptr() const { return state_ && state_->record.host_ptr; }

bool PackedAllocator::same_handle_type(const PackedAllocator& other) const {
  return state_ && other.state_ && internal::SameType(state_->type, other.state_->type);
}

bool PackedAllocator::same_transfer_domain(const PackedAllocator& other) const {
  return same_handle_type(other) && internal::DomainOf(state_->id) == internal::DomainOf(other.state_->id);
}

std::uint64_t PackedAllocator::id() const { return state_ ? state_->id : 0; }

const AnyRecord& PackedAllocator::record() const {
  static const AnyRecord& empty = *new AnyRecord;
  return state_ ? state_->record : empty;
}
const AllocatorTraits& PackedAllocator::traits() const { return record().traits; }
const Controls& PackedAllocator::controls() const { return record().controls; }

const void* PackedAllocator::TypedRecord(const internal::BufType* type) const {
  return HoldsType(type) ? state_->typed_record.get() : nullptr;
}

bool PackedAllocator::HoldsType(const internal::BufType* type) const {
  return state_ && internal::SameType(state_->type, type);
}

}  // namespace packalloc
