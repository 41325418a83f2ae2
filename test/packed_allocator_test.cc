#include "packalloc/packed_allocator.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>

namespace packalloc {
namespace {

Allocator<void*> Heap() {
  Allocator<void*> heap;
  heap.traits.name = "HEAP";
  heap.alloc = [](std::size_t n, const BufferSpec&) -> absl::StatusOr<void*> { return std::malloc(n); };
  heap.free = [](void* const& p, std::size_t, const BufferSpec&) {
    std::free(p);
    return absl::OkStatus();
  };
  heap.copyin = [](void* const& dest, absl::Span<const std::byte> src) {
    std::memcpy(dest, src.data(), src.size());
    return absl::OkStatus();
  };
  heap.copyout = [](absl::Span<std::byte> dest, void* const& src) {
    std::memcpy(dest.data(), src, dest.size());
    return absl::OkStatus();
  };
  heap.addr = [](void* const& p) { return DeviceAddress{reinterpret_cast<std::uintptr_t>(p), 0}; };
  return heap;
}

TEST_CASE("a packed allocator refuses another's buffer") {
  absl::StatusOr<PackedAllocator> a = Pack(Heap());
  absl::StatusOr<PackedAllocator> b = Pack(Heap());
  REQUIRE(a.ok());
  REQUIRE(b.ok());
  absl::StatusOr<AnyBuf> buf = a->alloc(16);
  REQUIRE(buf.ok());
  CHECK(b->free(*buf, 16).code() == absl::StatusCode::kInvalidArgument);
  CHECK(a->free(*buf, 8).code() == absl::StatusCode::kInvalidArgument);
  CHECK(a->free(*buf, 16).ok());
}

}  // namespace
}  // namespace packalloc
