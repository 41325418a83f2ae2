#include "backends/opencl/devices.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "backends/opencl/api.h"
#include "backends/opencl/error.h"
#include "lib/parse.h"

namespace packalloc::opencl {
namespace {

template <typename Get, typename Handle, typename Parameter>
absl::StatusOr<std::string> GetText(Get get, Handle handle, Parameter parameter, absl::string_view what) {
  std::size_t size = 0;
  absl::Status status = ToStatus(get(handle, parameter, 0, nullptr, &size), what);
  std::string text(size, '\0');
  if (status.ok()) status = ToStatus(get(handle, parameter, size, text.data(), nullptr), what);
  if (!status.ok()) return status;
  text.resize(std::min(text.find('\0'), text.size()));
  return std::string(absl::StripAsciiWhitespace(text));
}

int Rank(cl_device_type type) {
  if ((type & CL_DEVICE_TYPE_GPU) != 0) return 0;
  if ((type & CL_DEVICE_TYPE_ACCELERATOR) != 0) return 1;
  return (type & CL_DEVICE_TYPE_CPU) != 0 ? 2 : 3;
}

bool AtLeast12(const std::string& version) {
  int major = 0;
  int minor = 0;
  return std::sscanf(version.c_str(), "OpenCL %d.%d", &major, &minor) == 2 &&
         std::make_pair(major, minor) >= std::make_pair(1, 2);
}

// The platform's devices; what keeps it from having any goes to `reasons`.
std::vector<Device> DevicesOf(const Api& cl, cl_platform_id platform, std::vector<std::string>& reasons) {
  const std::string name = GetText(cl.clGetPlatformInfo, platform, CL_PLATFORM_NAME, "clGetPlatformInfo")
                               .value_or("a platform without name");
  // A platform without devices answers CL_DEVICE_NOT_FOUND and leaves the count as it was.
  cl_uint count = 0;
  const cl_int code = cl.clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, nullptr, &count);
  if (code == CL_DEVICE_NOT_FOUND || (code == CL_SUCCESS && count == 0)) {
    reasons.push_back(absl::StrCat(name, " has no device"));
    return {};
  }
  std::vector<cl_device_id> ids(count);
  absl::Status status = ToStatus(code, "clGetDeviceIDs");
  if (status.ok()) {
    status = ToStatus(cl.clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, count, ids.data(), nullptr), "clGetDeviceIDs");
  }
  if (!status.ok()) {
    reasons.push_back(absl::StrCat(name, ": ", status.message()));
    return {};
  }
  std::vector<Device> devices;
  for (cl_device_id id : ids) {
    absl::StatusOr<Device> device = DescribeDevice(cl, id);
    if (device.ok()) {
      devices.push_back(*std::move(device));
    } else {
      reasons.push_back(absl::StrCat(name, ": ", device.status().message()));
    }
  }
  return devices;
}

std::string Names(const std::vector<Device>& devices) {
  std::vector<std::string> names;
  names.reserve(devices.size());
  for (const Device& device : devices) names.push_back(absl::StrCat("CL:", names.size(), " ", device.name));
  return absl::StrJoin(names, ", ");
}

}  // namespace

absl::StatusOr<Device> DescribeDevice(const Api& cl, cl_device_id id) {
  constexpr char kCall[] = "clGetDeviceInfo";
  const auto get = cl.clGetDeviceInfo;
  Device device;
  device.id = id;
  absl::Status first_error;
  const auto take = [&first_error](auto& field, auto value) {
    if (value.ok()) {
      field = *std::move(value);
    } else {
      first_error.Update(value.status());
    }
  };
  cl_uint alignment_bits = 0;
  cl_bool unified = CL_FALSE;
  take(device.name, GetText(get, id, CL_DEVICE_NAME, kCall));
  take(device.version, GetText(get, id, CL_DEVICE_VERSION, kCall));
  take(device.platform, GetInfo<cl_platform_id>(get, id, CL_DEVICE_PLATFORM, kCall));
  take(device.type, GetInfo<cl_device_type>(get, id, CL_DEVICE_TYPE, kCall));
  take(device.memory_bytes, GetInfo<cl_ulong>(get, id, CL_DEVICE_GLOBAL_MEM_SIZE, kCall));
  take(device.max_alloc_bytes, GetInfo<cl_ulong>(get, id, CL_DEVICE_MAX_MEM_ALLOC_SIZE, kCall));
  take(alignment_bits, GetInfo<cl_uint>(get, id, CL_DEVICE_MEM_BASE_ADDR_ALIGN, kCall));
  take(unified, GetInfo<cl_bool>(get, id, CL_DEVICE_HOST_UNIFIED_MEMORY, kCall));
  if (first_error.ok()) {
    take(device.platform_name, GetText(cl.clGetPlatformInfo, device.platform, CL_PLATFORM_NAME, "clGetPlatformInfo"));
  }
  if (!first_error.ok()) return first_error;
  if (!AtLeast12(device.version)) {
    return absl::FailedPreconditionError(
        absl::StrCat(device.name, " offers ", device.version, ", but OpenCL 1.2 is needed"));
  }
  device.alignment = std::max<std::size_t>(alignment_bits / 8, 1);
  device.shares_host_memory = unified == CL_TRUE || (device.type & CL_DEVICE_TYPE_CPU) != 0;
  return device;
}

absl::StatusOr<std::vector<Device>> ListDevices(const Api& cl) {
  cl_uint count = 0;
  const cl_int code = cl.clGetPlatformIDs(0, nullptr, &count);
  if (code == kPlatformNotFound || (code == CL_SUCCESS && count == 0)) {
    return absl::UnavailableError("0 OpenCL platforms (install an OpenCL driver, or see OCL_ICD_VENDORS)");
  }
  std::vector<cl_platform_id> platforms(count);
  absl::Status status = ToStatus(code, "clGetPlatformIDs");
  if (status.ok()) status = ToStatus(cl.clGetPlatformIDs(count, platforms.data(), nullptr), "clGetPlatformIDs");
  if (!status.ok()) return absl::UnavailableError(status.message());

  std::vector<Device> devices;
  std::vector<std::string> reasons;
  for (cl_platform_id platform : platforms) {
    std::vector<Device> some = DevicesOf(cl, platform, reasons);
    devices.insert(devices.end(), std::make_move_iterator(some.begin()), std::make_move_iterator(some.end()));
  }
  if (devices.empty()) return absl::UnavailableError(absl::StrCat("no OpenCL device: ", absl::StrJoin(reasons, "; ")));
  std::stable_sort(devices.begin(), devices.end(), [](const Device& a, const Device& b) {
    return std::make_tuple(Rank(a.type), a.platform_name) < std::make_tuple(Rank(b.type), b.platform_name);
  });
  return devices;
}

absl::StatusOr<std::size_t> ChooseDevice(const std::vector<Device>& devices, const std::string& name) {
  if (name.empty()) return std::size_t{0};
  if (std::all_of(name.begin(), name.end(), absl::ascii_isdigit)) {
    absl::StatusOr<std::uint64_t> index = ParseUint64(name);
    if (index.ok() && *index < devices.size()) return *index;
    return absl::NotFoundError(
        absl::StrCat("no OpenCL device ", name, "; there ", devices.size() == 1 ? "is " : "are ", Names(devices)));
  }
  std::vector<std::size_t> fits;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    if (absl::StrContains(absl::AsciiStrToLower(devices[i].name), absl::AsciiStrToLower(name))) fits.push_back(i);
  }
  if (fits.size() == 1) return fits.front();
  if (fits.empty()) {
    return absl::NotFoundError(
        absl::StrCat("no OpenCL device's name contains ", Quoted(name), "; there are ", Names(devices)));
  }
  return absl::InvalidArgumentError(absl::StrCat("the names of ", fits.size(), " OpenCL devices contain ", Quoted(name),
                                                 "; say which by its index: ", Names(devices)));
}

}  // namespace packalloc::opencl
