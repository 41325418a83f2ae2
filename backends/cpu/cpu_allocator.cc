#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "backends/cpu/system_memory.h"
#include "lib/checks.h"
#include "lib/mapped_memory.h"
#include "packalloc/allocator.h"
#include "packalloc/backends/cpu.h"
#include "packalloc/buffer_spec.h"
#include "packalloc/disk_file.h"

namespace packalloc {
namespace {

constexpr std::size_t kAlignment = 64;  // a cache line, and the widest vector
constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();

// glibc maps each block above a threshold of 128 KiB by itself, and a process has about 65,000 mappings. The threshold
// rises to the size of any mapped block that is freed, so freeing one makes all smaller blocks come from the heap. (It
// stays where somebody set it by mallopt or the environment.)
void KeepSmallBlocksInHeap() {
  static const bool done = [] {
    void* volatile block = std::malloc(2 * kHugePage);  // room for the alignment too; volatile: or the pair is dropped
    std::free(block);
    return true;
  }();
  static_cast<void>(done);
}

// What all copies of one record share.
class CpuMemory {
 public:
  explicit CpuMemory(const CpuOptions& options) : options_(options) {}

  absl::StatusOr<CpuBuf> Alloc(std::size_t nbytes, const BufferSpec& spec) {
    if (absl::Status valid = CheckRequest("CPU", nbytes, spec); !valid.ok()) return valid;
    if (nbytes == 0) return CpuBuf{};
    if (spec.external_ptr.has_value()) return CpuBuf{reinterpret_cast<std::byte*>(*spec.external_ptr), nbytes};
    if (absl::Status room = Reserve(nbytes); !room.ok()) return room;
    absl::StatusOr<std::byte*> data = IsMapped(nbytes, spec) ? FromKernel(nbytes, spec) : FromHeap(nbytes, spec);
    if (!data.ok()) {
      Unreserve(nbytes);
      return data.status();
    }
    return CpuBuf{*data, nbytes};
  }

  absl::Status Free(const CpuBuf& buf, std::size_t nbytes, const BufferSpec& spec) {
    if (absl::Status same = CheckFreeSize("CPU", nbytes, buf.nbytes); !same.ok()) return same;
    if (nbytes == 0 || spec.external_ptr.has_value()) return absl::OkStatus();
    if (!IsMapped(nbytes, spec)) {
      std::free(buf.data);
    } else if (munmap(buf.data, MappedBytes(nbytes)) != 0) {
      // Nothing was released: the kernel refuses to split a mapping at the limit of mappings. It may work later.
      return absl::FailedPreconditionError(absl::StrCat(
          "CPU: munmap of ", nbytes, " bytes failed, the buffer is still allocated: ", std::strerror(errno)));
    }
    Unreserve(nbytes);
    return absl::OkStatus();
  }

  absl::StatusOr<MemoryInfo> Info() const {
    absl::StatusOr<MemoryInfo> info = SystemMemory();
    if (info.ok() && options_.max_bytes != kUnlimited) {
      const std::size_t used = in_use_.load(std::memory_order_relaxed);
      info->total_bytes = std::min(info->total_bytes, options_.max_bytes);
      info->free_bytes = std::min(info->free_bytes, options_.max_bytes - used);
    }
    return info;
  }

 private:
  // A function of what free is told too, so that no buffer needs a header.
  static bool IsMapped(std::size_t nbytes, const BufferSpec& spec) {
    return nbytes >= kHugePage || spec.alignment >= kHugePage;
  }

  absl::StatusOr<std::byte*> FromKernel(std::size_t nbytes, const BufferSpec& spec) const {
    return MapMemory("CPU", nbytes, std::max(spec.alignment, kHugePage), options_.huge_pages);
  }

  static absl::StatusOr<std::byte*> FromHeap(std::size_t nbytes, const BufferSpec& spec) {
    KeepSmallBlocksInHeap();
    void* data = nullptr;
    if (const int error = posix_memalign(&data, std::max(spec.alignment, kAlignment), nbytes); error != 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("CPU: posix_memalign of ", nbytes, " bytes failed: ", std::strerror(error)));
    }
    if (spec.zero) std::memset(data, 0, nbytes);  // calloc cannot align
    return static_cast<std::byte*>(data);
  }

  absl::Status Reserve(std::size_t nbytes) {
    if (options_.max_bytes == kUnlimited) return absl::OkStatus();  // no counter that threads share
    std::size_t used = in_use_.load(std::memory_order_relaxed);
    do {
      if (nbytes > options_.max_bytes - used) {
        return absl::ResourceExhaustedError(absl::StrCat("CPU: alloc of ", nbytes, " bytes with ", used,
                                                         " in use exceeds max_bytes=", options_.max_bytes));
      }
    } while (!in_use_.compare_exchange_weak(used, used + nbytes, std::memory_order_relaxed));
    return absl::OkStatus();
  }
  void Unreserve(std::size_t nbytes) {
    if (options_.max_bytes != kUnlimited) in_use_.fetch_sub(nbytes, std::memory_order_relaxed);
  }

  const CpuOptions options_;
  std::atomic<std::size_t> in_use_{0};  // never above max_bytes
};

// memmove, as host memory may be this very buffer's; and never of null, even for no bytes.
absl::Status Move(std::byte* dest, const std::byte* src, std::size_t nbytes) {
  if (nbytes != 0) std::memmove(dest, src, nbytes);
  return absl::OkStatus();
}

std::uint32_t CpuDomain() {
  static const std::uint32_t domain = NewDomain();
  return domain;
}

}  // namespace

Allocator<CpuBuf> CpuAllocator(const CpuOptions& options) {
  auto memory = std::make_shared<CpuMemory>(options);
  Allocator<CpuBuf> record;
  record.traits.name = "CPU";
  record.traits.min_alignment = kAlignment;
  record.traits.transfer_domain = CpuDomain();
  record.traits.memory_domain = CpuDomain();
  record.alloc = [memory](std::size_t nbytes, const BufferSpec& spec) { return memory->Alloc(nbytes, spec); };
  record.free = [memory](const CpuBuf& buf, std::size_t nbytes, const BufferSpec& spec) {
    return memory->Free(buf, nbytes, spec);
  };
  record.copyin = [](const CpuBuf& dest, absl::Span<const std::byte> src) {
    if (absl::Status fits = CheckCopy("CPU: copyin", src.size(), dest.nbytes); !fits.ok()) return fits;
    return Move(dest.data, src.data(), src.size());
  };
  record.copyout = [](absl::Span<std::byte> dest, const CpuBuf& src) {
    if (absl::Status fits = CheckCopy("CPU: copyout", dest.size(), src.nbytes); !fits.ok()) return fits;
    return Move(dest.data(), src.data, dest.size());
  };
  record.addr = [](const CpuBuf& buf) { return DeviceAddress{reinterpret_cast<std::uintptr_t>(buf.data), 0}; };
  record.offset = [](const CpuBuf& buf, std::size_t nbytes, std::size_t byte_offset) -> absl::StatusOr<CpuBuf> {
    if (absl::Status fits = CheckView("CPU", nbytes, byte_offset, buf.nbytes); !fits.ok()) return fits;
    if (nbytes == 0) return CpuBuf{};
    return CpuBuf{buf.data + byte_offset, nbytes};
  };
  record.transfer = [](const CpuBuf& dest, const CpuBuf& src, std::size_t nbytes) {
    if (absl::Status fits = CheckCopy("CPU: transfer to the destination", nbytes, dest.nbytes); !fits.ok()) return fits;
    if (absl::Status fits = CheckCopy("CPU: transfer from the source", nbytes, src.nbytes); !fits.ok()) return fits;
    return Move(dest.data, src.data, nbytes);
  };
  record.copy_from_disk = [](const CpuBuf& dest, const DiskExtent& src, std::size_t nbytes) -> absl::Status {
    if (absl::Status fits = CheckCopy("CPU", nbytes, dest.nbytes); !fits.ok()) return fits;
    if (absl::Status fits = CheckExtent(src, nbytes); !fits.ok()) return fits;
    return src.file->Read(src.offset, {dest.data, nbytes});
  };
  record.host_ptr = [](const CpuBuf& buf) -> absl::StatusOr<std::byte*> { return buf.data; };
  record.memory_info = [memory] { return memory->Info(); };
  return record;
}

}  // namespace packalloc
