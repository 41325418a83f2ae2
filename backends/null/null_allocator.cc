#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "lib/checked_math.h"
#include "lib/checks.h"
#include "packalloc/allocator.h"
#include "packalloc/backends/null.h"
#include "packalloc/buffer_spec.h"

namespace packalloc {
namespace {

constexpr std::size_t kAlignment = 64;
// Buffers begin between 2^55 and 2^55 + 2^54 and end below 2^56: no user space of x86-64 (with 4 or 5 levels of page
// tables, unless a program asks for that very address) or of 64-bit ARM (which ignores the bits above 55, and takes
// bit 55 for the kernel's half) is there.
constexpr std::uintptr_t kFirst = std::uintptr_t{1} << 55;
constexpr std::size_t kSpan = std::size_t{1} << 54;

// Bytes of address space that a buffer takes.
std::size_t Taken(std::size_t nbytes, std::size_t alignment) {
  return *RoundUp(nbytes, kAlignment) + (alignment > kAlignment ? alignment : 0);
}

// A pair of calls costs two atomic additions, the least that counts live bytes over threads.
class AddressSpace {
 public:
  explicit AddressSpace(const NullOptions& options) : total_bytes_(options.total_bytes) {}

  absl::StatusOr<void*> Alloc(std::size_t nbytes, const BufferSpec& spec) {
    if (nbytes - 1 >= kSpan || spec.alignment != 0 || spec.external_ptr.has_value()) [[unlikely]] {
      return AllocUncommon(nbytes, spec);
    }
    return Take(nbytes, 0);
  }

  void Free(std::size_t nbytes, const BufferSpec& spec) {
    if (nbytes == 0 || spec.external_ptr.has_value()) [[unlikely]]
      return;
    given_back_.fetch_add(Taken(nbytes, spec.alignment), std::memory_order_release);
  }

  MemoryInfo Info() const {
    // In this order: what was given back was taken before, so the difference is not negative.
    const std::size_t given_back = given_back_.load(std::memory_order_acquire);
    const std::size_t live = taken_.load(std::memory_order_relaxed) - given_back;
    return {total_bytes_ - std::min(live, total_bytes_), total_bytes_};
  }

 private:
  void* Take(std::size_t nbytes, std::size_t alignment) {
    const std::size_t taken = taken_.fetch_add(Taken(nbytes, alignment), std::memory_order_relaxed);
    const std::uintptr_t address = kFirst + (taken & (kSpan - 1));
    return reinterpret_cast<void*>(alignment > kAlignment ? *RoundUp(address, alignment) : address);
  }

  absl::StatusOr<void*> AllocUncommon(std::size_t nbytes, const BufferSpec& spec) {
    if (absl::Status valid = CheckRequest("NULL", nbytes, spec); !valid.ok()) return valid;
    if (nbytes > kSpan) {
      return absl::ResourceExhaustedError(
          absl::StrCat("NULL: alloc of ", nbytes, " bytes, but there are addresses for ", kSpan));
    }
    if (nbytes == 0) return nullptr;
    if (!spec.external_ptr.has_value()) return Take(nbytes, spec.alignment);
    return reinterpret_cast<void*>(*spec.external_ptr);
  }

  const std::size_t total_bytes_;
  std::atomic<std::size_t> taken_{0};
  alignas(64) std::atomic<std::size_t> given_back_{0};  // apart: producers and consumers are different threads
};

}  // namespace

Allocator<void*> NullAllocator(const NullOptions& options) {
  auto space = std::make_shared<AddressSpace>(options);
  Allocator<void*> record;
  record.traits.name = "NULL";
  record.traits.min_alignment = kAlignment;
  record.traits.max_alloc_bytes = kSpan;
  record.traits.transfer_domain = NewDomain();
  record.traits.memory_domain = NewDomain();
  record.alloc = [space](std::size_t nbytes, const BufferSpec& spec) { return space->Alloc(nbytes, spec); };
  record.free = [space](void* const&, std::size_t nbytes, const BufferSpec& spec) {
    space->Free(nbytes, spec);
    return absl::OkStatus();
  };
  record.copyin = [](void* const&, absl::Span<const std::byte>) { return absl::OkStatus(); };
  record.copyout = [](absl::Span<std::byte>, void* const&) { return absl::OkStatus(); };
  record.addr = [](void* const& buf) { return DeviceAddress{reinterpret_cast<std::uintptr_t>(buf), 0}; };
  record.offset = [](void* const& buf, std::size_t, std::size_t byte_offset) -> absl::StatusOr<void*> {
    // As integers: there is no object here that pointer arithmetic could be about.
    return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(buf) + byte_offset);
  };
  record.transfer = [](void* const&, void* const&, std::size_t) { return absl::OkStatus(); };
  record.memory_info = [space]() -> absl::StatusOr<MemoryInfo> { return space->Info(); };
  return record;
}

}  // namespace packalloc
