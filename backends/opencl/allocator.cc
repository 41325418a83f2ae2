// The record of an OpenCL queue.
#include "packalloc/allocator.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "backends/opencl/queue.h"
#include "lib/checks.h"
#include "packalloc/backends/opencl.h"

namespace packalloc {
namespace {

using opencl::Queue;

// Records of one device draw on the same memory, in whatever context they are.
std::uint32_t MemoryDomain(cl_device_id device) {
  struct Domains {
    std::mutex mutex;
    absl::flat_hash_map<cl_device_id, std::uint32_t> ids;
  };
  static Domains& domains = *new Domains;
  const std::lock_guard lock(domains.mutex);
  std::uint32_t& id = domains.ids[device];
  if (id == 0) id = NewDomain();
  return id;
}

absl::StatusOr<OpenClBuf> View(const OpenClBuf& buf, std::size_t nbytes, std::size_t byte_offset) {
  if (absl::Status fits = CheckView("CL", nbytes, byte_offset, buf.nbytes); !fits.ok()) return fits;
  if (nbytes == 0) return OpenClBuf{};
  return OpenClBuf{buf.root, buf.offset + byte_offset, nbytes};
}

}  // namespace

absl::StatusOr<Allocator<OpenClBuf>> OpenClAllocator(const OpenClOptions& options) {
  absl::StatusOr<std::shared_ptr<Queue>> opened = Queue::Open(options);
  if (!opened.ok()) return opened.status();
  const std::shared_ptr<Queue> queue = *std::move(opened);
  Allocator<OpenClBuf> record;
  record.alloc = [queue](std::size_t nbytes, const BufferSpec& spec) { return queue->Alloc(nbytes, spec); };
  record.free = [queue](const OpenClBuf& buf, std::size_t nbytes, const BufferSpec& spec) {
    return queue->Free(buf, nbytes, spec);
  };
  record.copy_from_disk = [queue](const OpenClBuf& dest, const DiskExtent& src, std::size_t nbytes) {
    return queue->CopyFromDisk(dest, src, nbytes);
  };
  record.copyin = [queue](const OpenClBuf& dest, absl::Span<const std::byte> src) { return queue->CopyIn(dest, src); };
  record.copyout = [queue](absl::Span<std::byte> dest, const OpenClBuf& src) { return queue->CopyOut(dest, src); };
  record.addr = [](const OpenClBuf& buf) {
    return DeviceAddress{reinterpret_cast<std::uintptr_t>(buf.root), buf.offset};
  };
  record.offset = View;
  record.transfer = [queue](const OpenClBuf& dest, const OpenClBuf& src, std::size_t nbytes) {
    return queue->Transfer(dest, src, nbytes);
  };
  record.host_ptr = [queue](const OpenClBuf& buf) { return queue->HostPtr(buf); };
  record.synchronize = [queue] { return queue->Synchronize(); };
  record.traits.name = queue->name();
  record.traits.min_alignment = queue->device_facts().alignment;
  record.traits.max_alloc_bytes = queue->device_facts().max_alloc_bytes;
  record.traits.address_is_pointer = false;
  record.traits.transfer_domain = queue->transfer_domain();
  record.traits.memory_domain = MemoryDomain(queue->device());
  record.controls.Add<OpenClNative>(queue);
  return record;
}

}  // namespace packalloc
