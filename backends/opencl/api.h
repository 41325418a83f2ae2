// The OpenCL entry points this backend calls, from the loader (libOpenCL.so.1, or the path in PACKALLOC_LIBOPENCL)
// found at run time.
#ifndef PACKALLOC_BACKENDS_OPENCL_API_H_
#define PACKALLOC_BACKENDS_OPENCL_API_H_

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace packalloc::opencl {

#define PACKALLOC_OPENCL_ENTRY_POINTS(X) \
  X(clGetPlatformIDs)                    \
  X(clGetPlatformInfo)                   \
  X(clGetDeviceIDs)                      \
  X(clGetDeviceInfo)                     \
  X(clCreateContext)                     \
  X(clRetainContext)                     \
  X(clReleaseContext)                    \
  X(clGetContextInfo)                    \
  X(clCreateCommandQueue)                \
  X(clRetainCommandQueue)                \
  X(clReleaseCommandQueue)               \
  X(clGetCommandQueueInfo)               \
  X(clCreateBuffer)                      \
  X(clCreateSubBuffer)                   \
  X(clRetainMemObject)                   \
  X(clReleaseMemObject)                  \
  X(clGetMemObjectInfo)                  \
  X(clEnqueueReadBuffer)                 \
  X(clEnqueueWriteBuffer)                \
  X(clEnqueueCopyBuffer)                 \
  X(clEnqueueFillBuffer)                 \
  X(clEnqueueMapBuffer)                  \
  X(clEnqueueUnmapMemObject)             \
  X(clEnqueueMigrateMemObjects)          \
  X(clEnqueueBarrierWithWaitList)        \
  X(clFlush)                             \
  X(clFinish)

struct Api {
#define PACKALLOC_OPENCL_MEMBER(name) decltype(&::name) name = nullptr;
  PACKALLOC_OPENCL_ENTRY_POINTS(PACKALLOC_OPENCL_MEMBER)
#undef PACKALLOC_OPENCL_MEMBER
};

// Loads the loader once and starts its platforms. UNAVAILABLE naming what is missing.
absl::StatusOr<const Api*> LoadApi();

// OK, or FAILED_PRECONDITION in a child of the process that loaded the API (its drivers hang there) and once the
// process exits (they may already be gone). Every path to the driver asks first.
absl::Status CheckUsable();
// Whether the process has begun to exit: what is freed now goes with it.
bool IsExiting();

// Gives one reference back; with the driver's refusal it is kept and tried again by later calls of ReleaseKept, a few
// times. Does nothing where CheckUsable fails. Never fails.
void Release(std::function<cl_int()> release);
void ReleaseKept();

}  // namespace packalloc::opencl

#endif  // PACKALLOC_BACKENDS_OPENCL_API_H_
