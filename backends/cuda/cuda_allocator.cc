#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "backends/cuda/record.h"
#include "lib/checks.h"
#include "packalloc/allocator.h"
#include "packalloc/backends/cuda.h"
#include "packalloc/buffer_spec.h"

namespace packalloc {
namespace {

std::uint32_t TransferDomain() {
  static const std::uint32_t domain = NewDomain();
  return domain;
}

// One for each device of the process.
std::uint32_t MemoryDomain(int device) {
  static auto& mutex = *new std::mutex;
  static auto& domains = *new std::vector<std::uint32_t>;
  const std::lock_guard<std::mutex> lock(mutex);
  while (domains.size() <= static_cast<std::size_t>(device)) domains.push_back(NewDomain());
  return domains[static_cast<std::size_t>(device)];
}

}  // namespace

absl::StatusOr<Allocator<CudaBuf>> CudaAllocator(const CudaOptions& options) {
  absl::StatusOr<std::shared_ptr<internal::CudaRecord>> opened = internal::CudaRecord::Open(options);
  if (!opened.ok()) return opened.status();
  const std::shared_ptr<internal::CudaRecord>& cuda = *opened;
  Allocator<CudaBuf> record;
  record.traits.name = cuda->name();
  record.traits.min_alignment = internal::kCudaAlignment;
  record.traits.transfer_domain = TransferDomain();
  record.traits.memory_domain = MemoryDomain(cuda->device());
  record.controls.Add<CudaNative>(cuda);
  record.alloc = [cuda](std::size_t nbytes, const BufferSpec& spec) { return cuda->Alloc(nbytes, spec); };
  record.free = [cuda](const CudaBuf& buf, std::size_t nbytes, const BufferSpec& spec) {
    return cuda->Free(buf, nbytes, spec);
  };
  record.copyin = [cuda](const CudaBuf& dest, absl::Span<const std::byte> src) { return cuda->CopyIn(dest, src); };
  record.copyout = [cuda](absl::Span<std::byte> dest, const CudaBuf& src) { return cuda->CopyOut(dest, src); };
  record.addr = [](const CudaBuf& buf) { return DeviceAddress{static_cast<std::uintptr_t>(buf.ptr), 0}; };
  record.offset = [](const CudaBuf& buf, std::size_t nbytes, std::size_t byte_offset) -> absl::StatusOr<CudaBuf> {
    if (absl::Status fits = CheckView("CUDA", nbytes, byte_offset, buf.nbytes); !fits.ok()) return fits;
    CudaBuf view = buf;
    view.ptr = nbytes == 0 ? 0 : buf.ptr + byte_offset;
    view.nbytes = nbytes;
    return view;
  };
  record.transfer = [cuda](const CudaBuf& dest, const CudaBuf& src, std::size_t nbytes) {
    return cuda->Transfer(dest, src, nbytes);
  };
  record.copy_from_disk = [cuda](const CudaBuf& dest, const DiskExtent& src, std::size_t nbytes) {
    return cuda->CopyFromDisk(dest, src, nbytes);
  };
  record.host_ptr = [cuda](const CudaBuf& buf) { return cuda->HostPtr(buf); };
  record.memory_info = [cuda] { return cuda->Info(); };
  record.synchronize = [cuda] { return cuda->Synchronize(); };
  return record;
}

}  // namespace packalloc
