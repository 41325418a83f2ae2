// For tests of the OpenCL backend: the caller's side of OpenCL (contexts, queues, kernels, gates), straight on the
// loader, and the visible skip where this machine has no device.
#ifndef PACKALLOC_TEST_BACKENDS_OPENCL_SUPPORT_H_
#define PACKALLOC_TEST_BACKENDS_OPENCL_SUPPORT_H_

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "packalloc/allocator.h"
#include "packalloc/backends/opencl.h"

namespace packalloc::testing {

// A kernel of `source`, released at the end. Fails the test with the build log.
class Kernel {
 public:
  Kernel(cl_context context, cl_device_id device, const char* source, const char* name);
  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  template <typename T>
  void Set(cl_uint index, const T& value) {
    SetBytes(index, sizeof value, &value);
  }
  // Enqueues `items` work items.
  void Run(cl_command_queue queue, std::size_t items);

 private:
  void SetBytes(cl_uint index, std::size_t size, const void* value);
  cl_program program_ = nullptr;
  cl_kernel kernel_ = nullptr;
};

// An event that the test completes: what waits for it has not begun before.
class Gate {
 public:
  // The first device on which a gate works: PoCL's "basic" and Oclgrind run commands in the thread that waits for them,
  // so they wait for ever. Nullopt, with a message, where there is none.
  static std::optional<std::string> Device();

  explicit Gate(cl_context context);
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  // Holds back all that is enqueued later.
  void Close(cl_command_queue queue);
  void Open();

 private:
  cl_event event_ = nullptr;
  bool open_ = false;
};

// As the engine would: a context and a queue of its own.
class OwnQueue {
 public:
  explicit OwnQueue(cl_command_queue_properties properties = 0, bool own_context = true,
                    const std::string& device = "");
  ~OwnQueue();
  OwnQueue(const OwnQueue&) = delete;
  OwnQueue& operator=(const OwnQueue&) = delete;

  cl_context context() const { return context_; }
  cl_command_queue queue() const { return queue_; }
  cl_device_id device() const { return device_; }

 private:
  cl_device_id device_ = nullptr;
  cl_context context_ = nullptr;
  cl_command_queue queue_ = nullptr;
};

// Whether the first device has out-of-order queues; where not, says so.
bool HasOutOfOrderQueues();

// The record, or a failed test that says why there is none.
Allocator<OpenClBuf> OpenCl(const OpenClOptions& options = {});

// 0, 1, ..., 250, 0, 1, ... plus `seed`.
std::vector<std::byte> Pattern(std::size_t nbytes, unsigned seed = 0);
std::vector<std::byte> Read(const Allocator<OpenClBuf>& record, const OpenClBuf& buf);
std::string DeviceName(cl_device_id device);
// Oclgrind interprets each instruction, and is not made for several threads.
bool IsOclgrind(cl_device_id device);

}  // namespace packalloc::testing

#endif  // PACKALLOC_TEST_BACKENDS_OPENCL_SUPPORT_H_
