// The OpenCL devices of this machine, over all platforms, in an order that does not depend on the loader's: GPUs first,
// then accelerators, then CPUs, and by the platform's name among equals.
#ifndef PACKALLOC_BACKENDS_OPENCL_DEVICES_H_
#define PACKALLOC_BACKENDS_OPENCL_DEVICES_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "backends/opencl/api.h"
#include "backends/opencl/error.h"

namespace packalloc::opencl {

struct Device {
  cl_platform_id platform = nullptr;
  cl_device_id id = nullptr;
  std::string name;
  std::string platform_name;
  std::string version;  // "OpenCL 3.0 ..."
  cl_device_type type = 0;
  cl_ulong memory_bytes = 0;
  cl_ulong max_alloc_bytes = 0;
  std::size_t alignment = 0;  // bytes; of buffers and sub-buffers
  bool shares_host_memory = false;
};

// One value by one of the clGet...Info functions, all of which are called alike.
template <typename T, typename Get, typename Handle, typename Parameter>
absl::StatusOr<T> GetInfo(Get get, Handle handle, Parameter parameter, absl::string_view what) {
  T value{};
  absl::Status status = ToStatus(get(handle, parameter, sizeof value, &value, nullptr), what);
  if (!status.ok()) return status;
  return value;
}

// FAILED_PRECONDITION for a device that this backend cannot use (before OpenCL 1.2, no compiler for kernels is fine).
absl::StatusOr<Device> DescribeDevice(const Api& cl, cl_device_id id);

// At least one device, or UNAVAILABLE saying for every platform why it has none.
absl::StatusOr<std::vector<Device>> ListDevices(const Api& cl);

// The index in `devices` that OpenClOptions::device names; NOT_FOUND or, where several fit, INVALID_ARGUMENT.
absl::StatusOr<std::size_t> ChooseDevice(const std::vector<Device>& devices, const std::string& name);

}  // namespace packalloc::opencl

#endif  // PACKALLOC_BACKENDS_OPENCL_DEVICES_H_
