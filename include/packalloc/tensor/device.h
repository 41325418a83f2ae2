// DlDevice: where a tensor's memory is, DLPack's DLDevice.
//
//   packalloc::DlDevice gpu{packalloc::DlDevice::kCuda, 1};
//   absl::StatusOr<packalloc::DlDevice> of = packalloc::DlDeviceOf(*packalloc::Open("CUDA:1+lru"));     // the same
//   packalloc::DlDevice from(dl_tensor.device);                    // any struct with device_type and device_id
#ifndef PACKALLOC_TENSOR_DEVICE_H_
#define PACKALLOC_TENSOR_DEVICE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "packalloc/buffer_spec.h"
#include "packalloc/packed_allocator.h"

namespace packalloc {

// Compares by value; has the layout of DLDevice.
struct DlDevice {
  // DLPack's DLDeviceType, all of version 1.3. Other numbers are devices too.
  enum Type : std::int32_t {
    kCpu = 1,
    kCuda = 2,
    kCudaHost = 3,  // pinned host memory
    kOpenCl = 4,
    kVulkan = 7,
    kMetal = 8,
    kVpi = 9,
    kRocm = 10,
    kRocmHost = 11,
    kExtDev = 12,
    kCudaManaged = 13,
    kOneApi = 14,
    kWebGpu = 15,
    kHexagon = 16,
    kMaia = 17,
    kTrn = 18,
  };

  std::int32_t type = kCpu;
  std::int32_t id = 0;

  constexpr DlDevice() = default;
  constexpr explicit DlDevice(std::int32_t device_type) : type(device_type) {}
  constexpr DlDevice(std::int32_t device_type, std::int32_t device_id) : type(device_type), id(device_id) {}
  // From DLPack's own struct.
  template <typename Device>
  requires requires(const Device& d) { d.device_type, d.device_id; }
  constexpr explicit DlDevice(const Device& d)
      : type(static_cast<std::int32_t>(d.device_type)), id(static_cast<std::int32_t>(d.device_id)) {}

  friend constexpr bool operator==(const DlDevice&, const DlDevice&) = default;
};
static_assert(sizeof(DlDevice) == 8);

// "CPU:0", "CUDA:1", "CUDA host:0"; "device type 40:0" for a type that is not known.
std::string ToString(DlDevice device);

// The device on which `allocator` makes memory of that spec, told by the allocator's name: CPU, CUDA[:n] (pinned host
// memory where spec.host) and CL[:n], with any layers. INVALID_ARGUMENT for any other: DLPack has no device for it, and
// the caller says which one it is to pass for. Thread-safe.
absl::StatusOr<DlDevice> DlDeviceOf(const PackedAllocator& allocator, const BufferSpec& spec = {});

}  // namespace packalloc

#endif  // PACKALLOC_TENSOR_DEVICE_H_
