// What the copies of one OpenCL record share: a device, a context and a command queue, and the record's members on
// them.
#ifndef PACKALLOC_BACKENDS_OPENCL_QUEUE_H_
#define PACKALLOC_BACKENDS_OPENCL_QUEUE_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "backends/opencl/api.h"
#include "backends/opencl/context.h"
#include "backends/opencl/devices.h"
#include "packalloc/allocator.h"
#include "packalloc/backends/opencl.h"
#include "packalloc/buffer_spec.h"

namespace packalloc::opencl {

class Queue final : public OpenClNative, public std::enable_shared_from_this<Queue> {
 public:
  // As OpenClAllocator says (queue.cc).
  static absl::StatusOr<std::shared_ptr<Queue>> Open(const OpenClOptions& options);
  ~Queue() override;
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  const std::string& name() const { return name_; }
  const Device& device_facts() const { return device_; }
  std::uint32_t transfer_domain() const { return context_->transfer_domain(); }

  cl_platform_id platform() const override { return device_.platform; }
  cl_device_id device() const override { return device_.id; }
  cl_context context() const override { return context_->handle(); }
  cl_command_queue queue() const override { return queue_; }
  absl::StatusOr<cl_mem> SubBuffer(const OpenClBuf& buf) override;
  absl::StatusOr<OpenClBuf> Wrap(cl_mem mem) override;

  // The record's members (memory.cc).
  absl::StatusOr<OpenClBuf> Alloc(std::size_t nbytes, const BufferSpec& spec);
  absl::Status Free(const OpenClBuf& buf, std::size_t nbytes, const BufferSpec& spec);
  absl::StatusOr<std::byte*> HostPtr(const OpenClBuf& buf);

  // The record's members (copy.cc).
  absl::Status CopyIn(const OpenClBuf& dest, absl::Span<const std::byte> src);
  absl::Status CopyOut(absl::Span<std::byte> dest, const OpenClBuf& src);
  absl::Status CopyFromDisk(const OpenClBuf& dest, const DiskExtent& src, std::size_t nbytes);
  absl::Status Transfer(const OpenClBuf& dest, const OpenClBuf& src, std::size_t nbytes);
  absl::Status Synchronize();

 private:
  Queue(const Api& cl, std::shared_ptr<Context> context, Device device, cl_command_queue queue,
        const OpenClOptions& options);

  // OK where the driver may be called: not forked, not exiting, the device not lost.
  absl::Status CheckReady() const;
  // ToStatus with the record's name in front; remembers that the device is lost.
  absl::Status Result(cl_int code, absl::string_view what);
  // The root under a buffer of this record, whose bytes lie inside it; else INVALID_ARGUMENT.
  absl::StatusOr<Root> CheckOwned(const OpenClBuf& buf, absl::string_view operation) const;

  // On an out-of-order queue, what is enqueued later waits for all that was before.
  absl::Status Barrier();
  // Zero-fills fresh memory, or makes the driver provide it.
  absl::Status Prepare(cl_mem mem, std::size_t nbytes, const BufferSpec& spec);
  // Makes what the device wrote visible to the CPU and the reverse, and tells where the bytes are.
  absl::StatusOr<std::byte*> MapOnce(cl_mem mem, std::size_t begin, std::size_t nbytes);
  // Waits for all that was enqueued, and does that for the whole buffer.
  absl::Status WriteBack(cl_mem mem, std::size_t nbytes);
  // Copies as by memmove, without any barrier before or after.
  absl::Status Move(const OpenClBuf& dest, const OpenClBuf& src, std::size_t nbytes, bool overlap, bool backwards);
  absl::Status Copy(cl_mem dest, std::size_t dest_offset, cl_mem src, std::size_t src_offset, std::size_t nbytes);
  // The queues of other records whose work on either root a transfer has to be ordered with.
  std::vector<std::shared_ptr<Queue>> OthersOn(const Root& dest, const Root& src) const;

  const Api& cl_;
  const std::shared_ptr<Context> context_;
  const Device device_;
  const cl_command_queue queue_;  // one reference
  const std::size_t max_copy_bytes_;
  const bool commit_;
  bool out_of_order_ = false;
  std::string name_;
  std::atomic<bool> lost_{false};
};

}  // namespace packalloc::opencl

#endif  // PACKALLOC_BACKENDS_OPENCL_QUEUE_H_
