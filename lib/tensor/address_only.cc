#include "lib/tensor/address_only.h"

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace packalloc {
namespace {

absl::Status NoCopies() {
  return absl::UnimplementedError(
      "the tensor was imported without an allocator, so its bytes cannot be copied; give FromDlpack the allocator of "
      "its device");
}

PackedAllocator Make(bool address_is_pointer) {
  Allocator<DeviceAddress> record;
  record.traits.name = "imported";
  record.traits.address_is_pointer = address_is_pointer;
  record.alloc = [](std::size_t, const BufferSpec& spec) -> absl::StatusOr<DeviceAddress> {
    if (!spec.external_ptr)
      return absl::UnimplementedError("imported memory's device is not known: it cannot allocate");
    return DeviceAddress{*spec.external_ptr, 0};
  };
  record.free = [](const DeviceAddress&, std::size_t, const BufferSpec&) { return absl::OkStatus(); };
  record.copyin = [](const DeviceAddress&, absl::Span<const std::byte>) { return NoCopies(); };
  record.copyout = [](absl::Span<std::byte>, const DeviceAddress&) { return NoCopies(); };
  record.addr = [](const DeviceAddress& address) { return address; };
  record.offset = [address_is_pointer](const DeviceAddress& base, std::size_t,
                                       std::size_t byte_offset) -> absl::StatusOr<DeviceAddress> {
    DeviceAddress view = base;
    (address_is_pointer ? view.value : view.byte_offset) += byte_offset;
    return view;
  };
  return *Pack(std::move(record));
}

}  // namespace

const PackedAllocator& AddressOnly(bool address_is_pointer) {
  static const PackedAllocator& pointers = *new PackedAllocator(Make(true));
  static const PackedAllocator& handles = *new PackedAllocator(Make(false));
  return address_is_pointer ? pointers : handles;
}

}  // namespace packalloc
