// Launches an OpenCL kernel on a view of a cached buffer: by root and byte offset, which works at any offset, and by a
// sub-buffer, for kernels that take no offset. Exit status 77 where there is no OpenCL device.
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include <iostream>
#include <vector>

#include "packalloc/backends/opencl.h"
#include "packalloc/packed_allocator.h"
#include "packalloc/registry.h"

namespace {

// [snippet kernel]
constexpr char kSource[] = R"(
__kernel void twice(__global uchar* root, ulong offset) {
  __global float* data = (__global float*)(root + offset);
  data[get_global_id(0)] *= 2;
})";

cl_kernel Build(const packalloc::OpenClNative& native) {
  const char* source = kSource;
  cl_device_id device = native.device();
  cl_program program = clCreateProgramWithSource(native.context(), 1, &source, nullptr, nullptr);
  clBuildProgram(program, 1, &device, "", nullptr, nullptr);
  cl_kernel kernel = clCreateKernel(program, "twice", nullptr);
  clReleaseProgram(program);
  return kernel;
}
// [/snippet kernel]

}  // namespace

int main() {
  // [snippet]
  absl::StatusOr<packalloc::PackedAllocator> device = packalloc::Open("CL+lru");
  if (!device.ok()) {
    std::cerr << device.status() << '\n';
    return 77;
  }
  auto native = packalloc::Find<packalloc::OpenClNative>(*device);  // context, device and queue, through the cache
  cl_kernel twice = Build(*native);

  const std::vector<float> ones(1024, 1.0F);
  absl::StatusOr<packalloc::AnyBuf> matrix = device->alloc(4096);
  absl::StatusOr<packalloc::AnyBuf> row = device->offset(*matrix, 64, 2048);
  if (!matrix.ok() || !row.ok()) return 1;
  absl::Status status =
      device->copyin(*matrix, absl::MakeConstSpan(reinterpret_cast<const std::byte*>(&ones[0]), 4096));

  // The kernel runs after the copyin, and the copyout after the kernel: all go through one queue.
  const packalloc::OpenClBuf& view = *row->get<packalloc::OpenClBuf>();
  const cl_ulong offset = view.offset;
  const size_t items = view.nbytes / sizeof(float);
  clSetKernelArg(twice, 0, sizeof(cl_mem), &view.root);
  clSetKernelArg(twice, 1, sizeof offset, &offset);
  clEnqueueNDRangeKernel(native->queue(), twice, 1, nullptr, &items, nullptr, 0, nullptr, nullptr);

  // The same bytes as a buffer object of their own, where the device's alignment allows (2048 is a multiple of it).
  absl::StatusOr<cl_mem> sub_buffer = native->SubBuffer(view);
  if (sub_buffer.ok()) {
    const cl_ulong start = 0;
    clSetKernelArg(twice, 0, sizeof(cl_mem), &*sub_buffer);
    clSetKernelArg(twice, 1, sizeof start, &start);
    clEnqueueNDRangeKernel(native->queue(), twice, 1, nullptr, &items, nullptr, 0, nullptr, nullptr);
    clReleaseMemObject(*sub_buffer);  // ours; the kernel keeps its own reference
  }

  std::vector<float> result(16);
  if (status.ok()) status = device->copyout(absl::MakeSpan(reinterpret_cast<std::byte*>(&result[0]), 64), *row);
  // [/snippet]
  clReleaseKernel(twice);
  if (status.ok()) status = device->free(*matrix, 4096);
  if (!status.ok()) {
    std::cerr << status << '\n';
    return 1;
  }
  std::cout << "each of " << items << " ones is now " << result[0] << '\n';
  return result == std::vector<float>(16, sub_buffer.ok() ? 4.0F : 2.0F) ? 0 : 1;
}
