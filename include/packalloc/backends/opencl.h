// OpenCL device memory as a record: on a context and queue of its own, or on those that an engine already has. The
// OpenCL loader is found at run time, so one program runs with and without it.
//
//   absl::StatusOr<packalloc::Allocator<packalloc::OpenClBuf>> cl = packalloc::OpenClAllocator();
//   absl::StatusOr<packalloc::OpenClBuf> weights = cl->alloc(1 << 20, {});
//   absl::StatusOr<packalloc::OpenClBuf> row = cl->offset(*weights, 400, 100);       // any byte offset is a view
//   std::vector<std::byte> host(400);
//   absl::Status written = cl->copyin(*row, host);
//   cl_ulong row_offset = row->offset;                                               // a kernel takes root and offset
//   clSetKernelArg(kernel, 0, sizeof(cl_mem), &row->root);
//   clSetKernelArg(kernel, 1, sizeof row_offset, &row_offset);
//   cl_command_queue queue = packalloc::Find<packalloc::OpenClNative>(*cl)->queue();
//   clEnqueueNDRangeKernel(queue, kernel, 1, nullptr, &items, nullptr, 0, nullptr, nullptr);   // after the copyin
//   auto mine = packalloc::OpenClAllocator({.queue = engine_queue});                 // ordered with the engine's work
#ifndef PACKALLOC_BACKENDS_OPENCL_H_
#define PACKALLOC_BACKENDS_OPENCL_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "packalloc/allocator.h"

// OpenCL's handles as CL/cl.h declares them, so that this header needs no OpenCL header.
typedef struct _cl_platform_id* cl_platform_id;      // NOLINT(modernize-use-using)
typedef struct _cl_device_id* cl_device_id;          // NOLINT(modernize-use-using)
typedef struct _cl_context* cl_context;              // NOLINT(modernize-use-using)
typedef struct _cl_command_queue* cl_command_queue;  // NOLINT(modernize-use-using)
typedef struct _cl_mem* cl_mem;                      // NOLINT(modernize-use-using)

namespace packalloc {

// `nbytes` bytes from byte `offset` of the buffer object `root`. A view has its base's root: OpenCL's own sub-buffers
// do not nest and begin only at multiples of the device's alignment. Holds no reference; a buffer of zero bytes has a
// null root.
struct OpenClBuf {
  cl_mem root = nullptr;
  std::size_t offset = 0;
  std::size_t nbytes = 0;
  friend bool operator==(const OpenClBuf&, const OpenClBuf&) = default;
};

struct OpenClOptions {
  // Which device, where no `queue` says it: an index in the list of `packalloc devices` ("0", "1"), a part of the
  // device's name in any case ("pthread", "rtx"), or "" for the first (of `context`'s devices, where that is given).
  std::string device{};
  // The caller's context and queue, retained as long as the record lives. With a queue alone the context is the
  // queue's; with a context alone the record makes a queue in it. Null: the record's own, with one context for all
  // devices of a platform. The queue may be out of order: see the ordering below.
  cl_context context = nullptr;
  cl_command_queue queue = nullptr;
  // The most bytes that one driver call copies, fills or maps; larger copies go in pieces. Not 0.
  std::size_t max_copy_bytes = std::size_t{1} << 30;
  // Whether alloc makes the driver provide the memory at once, so that running out is alloc's error (which a cache
  // answers by releasing what it keeps) and not that of the first copy or kernel. Costs one more enqueue per alloc.
  bool commit = true;
};

// A record over one OpenCL device (OpenCL 1.2 or later). Beside the contract of Allocator:
//  - Ordering: every operation follows everything enqueued on the queue before it and precedes everything enqueued
//    after it, on an out-of-order queue too (by barriers). transfer only enqueues; copyin and copyout are complete on
//    return, and so is a transfer between the buffers of two records of one context, ordered with the queues of both.
//  - spec.host and spec.cpu_access: CL_MEM_ALLOC_HOST_PTR. spec.external_ptr: CL_MEM_USE_HOST_PTR over host memory;
//    what the device writes is visible at the pointer after synchronize and after free; free waits for pending work.
//    spec.alignment: up to the device's (traits.min_alignment), else INVALID_ARGUMENT. spec.uncached: INVALID_ARGUMENT.
//  - host_ptr: of `host`, `cpu_access` and external_ptr buffers, on a device that shares the host's memory (a CPU, an
//    integrated GPU); else FAILED_PRECONDITION. synchronize makes the writes of either side visible to the other.
//  - memory_info is not there: OpenCL cannot tell how much memory is free.
//  - Errors: RESOURCE_EXHAUSTED for CL_MEM_OBJECT_ALLOCATION_FAILURE, CL_OUT_OF_RESOURCES, CL_OUT_OF_HOST_MEMORY and
//    sizes above the device's largest allocation. UNAVAILABLE, from then on without driver calls, for a lost device.
//    FAILED_PRECONDITION in a forked child and after the process began to exit; free then succeeds and does nothing.
//  - A free whose release the driver refuses succeeds; the release is tried again by later calls.
//
// UNAVAILABLE where there is no loader, platform or usable device, naming the reason; NOT_FOUND for a device that is
// not there; INVALID_ARGUMENT for a name that fits several devices, or a context, queue and device that do not belong
// together; FAILED_PRECONDITION in a child of a process that used OpenCL. Thread-safe.
absl::StatusOr<Allocator<OpenClBuf>> OpenClAllocator(const OpenClOptions& options = {});

// What an OpenCL record offers beside the record, found through any layers with Find<OpenClNative>: the handles to
// build programs with and to launch kernels on. Valid as long as this object or the record; the caller retains what it
// keeps longer. Thread-safe.
class OpenClNative {
 public:
  virtual ~OpenClNative() = default;

  virtual cl_platform_id platform() const = 0;
  virtual cl_device_id device() const = 0;
  virtual cl_context context() const = 0;
  // Kernels enqueued here are ordered with the record's operations.
  virtual cl_command_queue queue() const = 0;

  // A cl_mem of exactly buf's bytes, for kernels that take no offset. The caller owns one reference (release it with
  // clReleaseMemObject); equal ranges share one object, kept until the buffer is freed. It keeps the memory in use
  // beyond free. FAILED_PRECONDITION where buf.offset is no multiple of the device's alignment (traits.min_alignment),
  // INVALID_ARGUMENT for zero bytes or a buffer of another record.
  virtual absl::StatusOr<cl_mem> SubBuffer(const OpenClBuf& buf) = 0;

  // A buffer object that the caller made in this context, as a buffer of this record: retained here until the record's
  // free gets it back (with its nbytes and a default BufferSpec). INVALID_ARGUMENT for another context's object and for
  // a sub-buffer (wrap its parent and make a view), ALREADY_EXISTS for one that is wrapped or was allocated here.
  virtual absl::StatusOr<OpenClBuf> Wrap(cl_mem mem) = 0;
};

}  // namespace packalloc

#endif  // PACKALLOC_BACKENDS_OPENCL_H_
