#include "test/backends/opencl/support.h"

#include <doctest/doctest.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "packalloc/allocator.h"
#include "packalloc/backends/opencl.h"

namespace packalloc::testing {

Kernel::Kernel(cl_context context, cl_device_id device, const char* source, const char* name) {
  cl_int code = CL_SUCCESS;
  program_ = clCreateProgramWithSource(context, 1, &source, nullptr, &code);
  REQUIRE(code == CL_SUCCESS);
  if (clBuildProgram(program_, 1, &device, "", nullptr, nullptr) != CL_SUCCESS) {
    std::string log(10000, '\0');
    clGetProgramBuildInfo(program_, device, CL_PROGRAM_BUILD_LOG, log.size(), log.data(), nullptr);
    FAIL(log.c_str());
  }
  kernel_ = clCreateKernel(program_, name, &code);
  REQUIRE(code == CL_SUCCESS);
}

Kernel::~Kernel() {
  clReleaseKernel(kernel_);
  clReleaseProgram(program_);
}

void Kernel::SetBytes(cl_uint index, std::size_t size, const void* value) {
  REQUIRE(clSetKernelArg(kernel_, index, size, value) == CL_SUCCESS);
}

void Kernel::Run(cl_command_queue queue, std::size_t items) {
  REQUIRE(clEnqueueNDRangeKernel(queue, kernel_, 1, nullptr, &items, nullptr, 0, nullptr, nullptr) == CL_SUCCESS);
}

std::optional<std::string> Gate::Device() {
  for (int i = 0;; ++i) {
    const absl::StatusOr<Allocator<OpenClBuf>> record = OpenClAllocator({.device = std::to_string(i)});
    if (!record.ok()) break;
    const auto native = Find<OpenClNative>(*record);
    const std::string name = DeviceName(native->device());
    if (name.rfind("basic", 0) != 0 && !IsOclgrind(native->device())) return std::to_string(i);
  }
  MESSAGE("left out: no device here goes on while the host holds a user event back");
  return std::nullopt;
}

Gate::Gate(cl_context context) {
  cl_int code = CL_SUCCESS;
  event_ = clCreateUserEvent(context, &code);
  REQUIRE(code == CL_SUCCESS);
}

Gate::~Gate() {
  Open();
  clReleaseEvent(event_);
}

void Gate::Close(cl_command_queue queue) {
  REQUIRE(clEnqueueBarrierWithWaitList(queue, 1, &event_, nullptr) == CL_SUCCESS);
}

void Gate::Open() {
  if (!open_) clSetUserEventStatus(event_, CL_COMPLETE);
  open_ = true;
}

OwnQueue::OwnQueue(cl_command_queue_properties properties, bool own_context, const std::string& device) {
  const Allocator<OpenClBuf> record = OpenCl({.device = device});
  const auto native = Find<OpenClNative>(record);
  device_ = native->device();
  cl_int code = CL_SUCCESS;
  if (own_context) {
    context_ = clCreateContext(nullptr, 1, &device_, nullptr, nullptr, &code);
    REQUIRE(code == CL_SUCCESS);
  } else {
    context_ = native->context();
    clRetainContext(context_);
  }
  queue_ = clCreateCommandQueue(context_, device_, properties, &code);
  REQUIRE(code == CL_SUCCESS);
}

OwnQueue::~OwnQueue() {
  clReleaseCommandQueue(queue_);
  clReleaseContext(context_);
}

bool HasOutOfOrderQueues() {
  cl_command_queue_properties properties = 0;
  const Allocator<OpenClBuf> record = OpenCl();
  clGetDeviceInfo(Find<OpenClNative>(record)->device(), CL_DEVICE_QUEUE_PROPERTIES, sizeof properties, &properties,
                  nullptr);
  if ((properties & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE) != 0) return true;
  MESSAGE("left out: the device has no out-of-order queues");
  return false;
}

Allocator<OpenClBuf> OpenCl(const OpenClOptions& options) {
  absl::StatusOr<Allocator<OpenClBuf>> record = OpenClAllocator(options);
  REQUIRE_MESSAGE(record.ok(), std::string(record.status().message()));
  return *record;
}

std::vector<std::byte> Pattern(std::size_t nbytes, unsigned seed) {
  std::vector<std::byte> bytes(nbytes);
  for (std::size_t i = 0; i < nbytes; ++i) bytes[i] = static_cast<std::byte>((i + seed) % 251);
  return bytes;
}

std::vector<std::byte> Read(const Allocator<OpenClBuf>& record, const OpenClBuf& buf) {
  std::vector<std::byte> bytes(buf.nbytes);
  const absl::Status status = record.copyout(absl::MakeSpan(bytes), buf);
  REQUIRE_MESSAGE(status.ok(), std::string(status.message()));
  return bytes;
}

std::string DeviceName(cl_device_id device) {
  char name[256] = {};
  clGetDeviceInfo(device, CL_DEVICE_NAME, sizeof name - 1, name, nullptr);
  return name;
}

bool IsOclgrind(cl_device_id device) { return DeviceName(device) == "Oclgrind Simulator"; }

}  // namespace packalloc::testing
