// A backend of one's own, held to the contract by the suite. This is a whole test program, for doctest.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "packalloc/testing/contract.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "packalloc/allocator.h"

namespace {

// The handle is a bare pointer, so ranges are the packed allocator's to check.
packalloc::Allocator<void*> MyAllocator() {
  packalloc::Allocator<void*> heap;
  heap.traits.name = "HEAP";
  heap.traits.min_alignment = 64;
  heap.traits.max_alloc_bytes = std::size_t{1} << 40;
  heap.alloc = [](std::size_t n, const packalloc::BufferSpec& spec) -> absl::StatusOr<void*> {
    if (absl::Status valid = packalloc::ValidateSpec(spec); !valid.ok()) return valid;
    if (spec.external_ptr) return absl::InvalidArgumentError("HEAP wraps no external memory");
    if (n == 0) return nullptr;
    if (n > PTRDIFF_MAX) return absl::InvalidArgumentError("no object is that large");
    if (n > (std::size_t{1} << 40)) return absl::ResourceExhaustedError("HEAP is not that large");
    const std::size_t alignment = std::max<std::size_t>(spec.alignment, 64);
    void* p = std::aligned_alloc(alignment, (n + alignment - 1) / alignment * alignment);
    if (p == nullptr) return absl::ResourceExhaustedError("the heap is full");
    if (spec.zero) std::memset(p, 0, n);
    return p;
  };
  heap.free = [](void* const& p, std::size_t, const packalloc::BufferSpec&) {
    std::free(p);
    return absl::OkStatus();
  };
  heap.copyin = [](void* const& dest, absl::Span<const std::byte> src) {
    if (!src.empty()) std::memcpy(dest, src.data(), src.size());
    return absl::OkStatus();
  };
  heap.copyout = [](absl::Span<std::byte> dest, void* const& src) {
    if (!dest.empty()) std::memcpy(dest.data(), src, dest.size());
    return absl::OkStatus();
  };
  heap.addr = [](void* const& p) { return packalloc::DeviceAddress{reinterpret_cast<std::uintptr_t>(p), 0}; };
  return heap;
}

}  // namespace

TEST_CASE("my backend keeps the contract") {
  packalloc::testing::ContractOptions options;
  options.checks_ranges = false;
  options.skips = packalloc::testing::WithoutHooks();
  for (const char* member : {"offset", "transfer", "host_ptr", "memory_info"}) {
    options.skips.merge(packalloc::testing::WithoutMember(member));
  }
  for (const char* clause : {"spec.external_ptr", "spec.external_ptr_not_freed", "spec.external_ptr_not_cached"}) {
    options.skips[clause] = "HEAP wraps no external memory";
  }
  packalloc::testing::RunContract([] { return MyAllocator(); }, options);
  packalloc::testing::RunContract([] { return packalloc::Pack(MyAllocator()); }, options);
}
