// OpenCL's error codes as statuses.
#ifndef PACKALLOC_BACKENDS_OPENCL_ERROR_H_
#define PACKALLOC_BACKENDS_OPENCL_ERROR_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "backends/opencl/api.h"

namespace packalloc::opencl {

// The ICD extension's answer where there is no platform; CL_PLATFORM_NOT_FOUND_KHR.
inline constexpr cl_int kPlatformNotFound = -1001;

// Whether the device, and with it every queue on it, is gone for good.
bool IsDeviceLost(cl_int code);

// OK for CL_SUCCESS. RESOURCE_EXHAUSTED where memory ran out, UNAVAILABLE for a lost device, else INTERNAL: "`what`
// failed: CL_OUT_OF_RESOURCES (-5)".
absl::Status ToStatus(cl_int code, absl::string_view what);

}  // namespace packalloc::opencl

#endif  // PACKALLOC_BACKENDS_OPENCL_ERROR_H_
