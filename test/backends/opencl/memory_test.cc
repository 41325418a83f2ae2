// What alloc, free, views, sub-buffers and foreign memory are on OpenCL.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "packalloc/allocator.h"
#include "packalloc/backends/opencl.h"
#include "packalloc/buffer_spec.h"
#include "packalloc/packed_allocator.h"
#include "test/backends/opencl/support.h"

namespace packalloc {
namespace {

using testing::OpenCl;
using testing::OwnQueue;
using testing::Pattern;
using testing::Read;

constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max();

bool Mentions(const absl::Status& status, const std::string& text) {
  return std::string(status.message()).find(text) != std::string::npos;
}

TEST_CASE("a buffer holds what was copied in, at any offset of any view") {
  const Allocator<OpenClBuf> cl = OpenCl();
  const OpenClBuf base = *cl.alloc(4096, {});
  REQUIRE(cl.copyin(base, Pattern(4096)).ok());
  CHECK(Read(cl, base) == Pattern(4096));
  for (const std::size_t offset : {0, 64, 100, 128, 129, 4095}) {
    const std::size_t nbytes = offset == 4095 ? 1 : 900;
    const OpenClBuf view = *cl.offset(base, nbytes, offset);
    CHECK(Read(cl, view) == Pattern(nbytes, offset));
  }
  const OpenClBuf view = *cl.offset(base, 1024, 256);
  const OpenClBuf inner = *cl.offset(view, 64, 128);
  CHECK(inner == OpenClBuf{base.root, 384, 64});
  CHECK(cl.addr(inner) == DeviceAddress{reinterpret_cast<std::uintptr_t>(base.root), 384});
  REQUIRE(cl.copyin(inner, Pattern(64, 7)).ok());
  std::vector<std::byte> expected = Pattern(4096);
  for (std::size_t i = 0; i < 64; ++i) expected[384 + i] = Pattern(64, 7)[i];
  CHECK(Read(cl, base) == expected);
  CHECK(cl.free(base, 4096, {}).ok());
}

TEST_CASE("views and copies outside a buffer are refused without a driver call") {
  const Allocator<OpenClBuf> cl = OpenCl();
  const OpenClBuf small = *cl.alloc(64, {});
  CHECK(absl::IsOutOfRange(cl.offset(small, 8, 64).status()));
  CHECK(absl::IsOutOfRange(cl.offset(small, kMost - 4, 8).status()));
  CHECK(absl::IsOutOfRange(cl.offset(small, 2, kMost).status()));
  CHECK(cl.offset(small, 0, 64).ok());
  const OpenClBuf base = *cl.alloc(4096, {});
  const OpenClBuf view = *cl.offset(base, 1024, 256);
  CHECK(absl::IsOutOfRange(cl.offset(view, 64, 1016).status()));

  std::vector<std::byte> host(2000);
  CHECK(absl::IsOutOfRange(cl.copyin(view, host)));
  CHECK(absl::IsOutOfRange(cl.copyout(absl::MakeSpan(host), view)));
  CHECK(absl::IsOutOfRange(cl.transfer(view, base, 1025)));
  CHECK(absl::IsOutOfRange(cl.transfer(base, view, 1025)));
  // A handle that somebody put together wrongly.
  CHECK(absl::IsOutOfRange(cl.copyin(OpenClBuf{base.root, 4000, 200}, absl::MakeSpan(host).first(200))));
  CHECK(absl::IsOutOfRange(cl.transfer(OpenClBuf{base.root, kMost - 10, 200}, small, 20)));
  CHECK(cl.free(small, 64, {}).ok());
  CHECK(cl.free(base, 4096, {}).ok());
}

TEST_CASE("zero bytes need no driver") {
  const Allocator<OpenClBuf> cl = OpenCl();
  const OpenClBuf a = *cl.alloc(0, {});
  const OpenClBuf b = *cl.alloc(0, {});
  CHECK(a.root == nullptr);
  CHECK(cl.copyin(a, {}).ok());
  CHECK(cl.copyout({}, a).ok());
  CHECK(cl.transfer(a, b, 0).ok());
  CHECK(cl.offset(a, 0, 0).ok());
  CHECK(cl.addr(a) == DeviceAddress{});
  CHECK(*cl.host_ptr(a) == nullptr);
  CHECK(absl::IsInvalidArgument(Find<OpenClNative>(cl)->SubBuffer(a).status()));
  CHECK(cl.free(a, 0, {}).ok());
  CHECK(cl.free(b, 0, {}).ok());
}

TEST_CASE("sizes that no device has are refused, and name what there is") {
  const Allocator<OpenClBuf> cl = OpenCl();
  for (const std::size_t nbytes : {kMost, kMost - 100, kMost - 510, kMost / 2 + 1}) {
    CHECK(absl::IsInvalidArgument(cl.alloc(nbytes, {}).status()));
  }
  const std::size_t largest = cl.traits.max_alloc_bytes;
  const absl::Status too_large = cl.alloc(largest + 1, {}).status();
  CHECK(absl::IsResourceExhausted(too_large));
  CHECK(Mentions(too_large, std::to_string(largest)));
  CHECK(Mentions(too_large, std::to_string(largest + 1)));
  const OpenClBuf a = *cl.alloc(512, {});
  const OpenClBuf b = *cl.alloc(512, {});
  CHECK(a.root != b.root);
  CHECK(cl.free(a, 512, {}).ok());
  CHECK(cl.free(b, 512, {}).ok());
}

TEST_CASE("every field of a spec is honoured or refused") {
  const Allocator<OpenClBuf> cl = OpenCl();
  const std::size_t alignment = cl.traits.min_alignment;
  CHECK(absl::IsInvalidArgument(cl.alloc(64, {.uncached = true}).status()));
  CHECK(absl::IsInvalidArgument(cl.alloc(64, {.alignment = 2 * alignment}).status()));
  for (const std::size_t wrong : {std::size_t{3}, std::size_t{48}, std::size_t{1} << 63}) {
    CHECK(absl::IsInvalidArgument(cl.alloc(64, {.alignment = wrong}).status()));
  }
  const auto flags = [&cl](const BufferSpec& spec) {
    const OpenClBuf buf = *cl.alloc(64, spec);
    cl_mem_flags value = 0;
    clGetMemObjectInfo(buf.root, CL_MEM_FLAGS, sizeof value, &value, nullptr);
    CHECK(cl.free(buf, 64, spec).ok());
    return value;
  };
  CHECK(flags({}) == CL_MEM_READ_WRITE);
  CHECK(flags({.alignment = alignment}) == CL_MEM_READ_WRITE);
  CHECK(flags({.host = true}) == (CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR));
  CHECK(flags({.cpu_access = true}) == (CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR));
  alignas(64) std::byte memory[64];
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  CHECK(flags({.host = true, .external_ptr = address}) == (CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR));
  CHECK(absl::IsInvalidArgument(cl.alloc(32, {.alignment = 64, .external_ptr = address + 1}).status()));
}

TEST_CASE("zero-filled memory is zero, whatever was there before, in pieces of any size") {
  for (const std::size_t piece : {std::size_t{1} << 30, std::size_t{1000}, std::size_t{4096}}) {
    const Allocator<OpenClBuf> cl = OpenCl({.max_copy_bytes = piece});
    for (const std::size_t nbytes : {1, 3, 128, 1001, 65536, 65537}) {
      const OpenClBuf dirty = *cl.alloc(nbytes, {});
      REQUIRE(cl.copyin(dirty, Pattern(nbytes, 1)).ok());
      REQUIRE(cl.free(dirty, nbytes, {}).ok());
      const OpenClBuf buf = *cl.alloc(nbytes, {.zero = true});
      CHECK(Read(cl, buf) == std::vector<std::byte>(nbytes));
      CHECK(cl.free(buf, nbytes, {.zero = true}).ok());
    }
  }
}

TEST_CASE("external memory is used in place, sees the device's writes and survives free") {
  const Allocator<OpenClBuf> cl = OpenCl({.max_copy_bytes = 1500});
  std::vector<std::byte> memory = Pattern(4096);
  for (const std::size_t shift : {0, 1}) {
    const BufferSpec spec{.external_ptr = reinterpret_cast<std::uintptr_t>(memory.data() + shift)};
    const std::size_t nbytes = 4096 - shift;
    const OpenClBuf buf = *cl.alloc(nbytes, spec);
    CHECK(Read(cl, buf) == std::vector<std::byte>(memory.begin() + static_cast<std::ptrdiff_t>(shift), memory.end()));
    const OpenClBuf source = *cl.alloc(nbytes, {});
    REQUIRE(cl.copyin(source, Pattern(nbytes, 9)).ok());
    REQUIRE(cl.transfer(buf, source, nbytes).ok());
    REQUIRE(cl.synchronize().ok());
    CHECK(std::equal(memory.begin() + static_cast<std::ptrdiff_t>(shift), memory.end(), Pattern(nbytes, 9).begin()));
    if (const absl::StatusOr<std::byte*> pointer = cl.host_ptr(*cl.offset(buf, 8, 8)); pointer.ok()) {
      CHECK(*pointer == memory.data() + shift + 8);
    } else {
      CHECK(absl::IsFailedPrecondition(pointer.status()));
    }
    // Without a synchronize: free waits for what is pending.
    REQUIRE(cl.copyin(source, Pattern(nbytes, 20)).ok());
    REQUIRE(cl.transfer(buf, source, nbytes).ok());
    CHECK(absl::IsInvalidArgument(cl.free(buf, nbytes, {})));
    CHECK(cl.free(buf, nbytes, spec).ok());
    CHECK(std::equal(memory.begin() + static_cast<std::ptrdiff_t>(shift), memory.end(), Pattern(nbytes, 20).begin()));
    CHECK(cl.free(source, nbytes, {}).ok());
  }
  const OpenClBuf plain = *cl.alloc(64, {});
  CHECK(absl::IsFailedPrecondition(cl.host_ptr(plain).status()));
  CHECK(cl.free(plain, 64, {}).ok());
}

TEST_CASE("host memory has a pointer through which CPU and device see each other's writes after synchronize") {
  const Allocator<OpenClBuf> cl = OpenCl();
  const BufferSpec spec{.cpu_access = true};
  const OpenClBuf buf = *cl.alloc(4096, spec);
  const absl::StatusOr<std::byte*> pointer = cl.host_ptr(*cl.offset(buf, 1000, 96));
  if (pointer.ok()) {
    CHECK(*cl.host_ptr(buf) == *pointer - 96);
    const OpenClBuf source = *cl.alloc(1000, {});
    REQUIRE(cl.copyin(source, Pattern(1000)).ok());
    REQUIRE(cl.transfer(*cl.offset(buf, 1000, 96), source, 1000).ok());
    REQUIRE(cl.synchronize().ok());
    CHECK(std::equal(*pointer, *pointer + 1000, Pattern(1000).begin()));
    const std::vector<std::byte> other = Pattern(1000, 77);
    std::copy(other.begin(), other.end(), *pointer);
    REQUIRE(cl.synchronize().ok());
    CHECK(Read(cl, *cl.offset(buf, 1000, 96)) == other);
    CHECK(cl.free(source, 1000, {}).ok());
  } else {
    CHECK(absl::IsFailedPrecondition(pointer.status()));
  }
  CHECK(cl.free(buf, 4096, spec).ok());
}

TEST_CASE("free takes only what alloc of this record gave, once") {
  const Allocator<OpenClBuf> cl = OpenCl();
  const Allocator<OpenClBuf> other = OpenCl();
  const OpenClBuf buf = *cl.alloc(4096, {});
  CHECK(absl::IsInvalidArgument(cl.free(buf, 0, {})));
  CHECK(absl::IsInvalidArgument(cl.free(buf, 8192, {})));
  for (const std::size_t nbytes : {16, 4096}) {
    const absl::Status of_view = cl.free(*cl.offset(buf, 16, 16), nbytes, {});
    CHECK(absl::IsInvalidArgument(of_view));
    CHECK(Mentions(of_view, "view"));
  }
  CHECK(absl::IsInvalidArgument(other.free(buf, 4096, {})));
  CHECK(absl::IsInvalidArgument(other.copyin(buf, Pattern(10))));
  CHECK(cl.free(buf, 4096, {}).ok());
  CHECK(absl::IsInvalidArgument(cl.free(buf, 4096, {})));
  CHECK(absl::IsInvalidArgument(cl.copyin(buf, Pattern(10))));
  CHECK(absl::IsInvalidArgument(cl.transfer(buf, buf, 10)));
}

TEST_CASE("sub-buffers are shared by equal ranges, belong to the caller and need the device's alignment") {
  const Allocator<OpenClBuf> cl = OpenCl();
  const auto native = Find<OpenClNative>(cl);
  const std::size_t alignment = cl.traits.min_alignment;
  const OpenClBuf base = *cl.alloc(8 * alignment, {});
  const auto references = [](cl_mem mem) {
    cl_uint count = 0;
    clGetMemObjectInfo(mem, CL_MEM_REFERENCE_COUNT, sizeof count, &count, nullptr);
    return count;
  };
  const OpenClBuf view = *cl.offset(base, 100, 2 * alignment);
  const absl::StatusOr<cl_mem> sub = native->SubBuffer(view);
  REQUIRE(sub.ok());
  CHECK(references(*sub) == 2);
  CHECK(*native->SubBuffer(view) == *sub);
  CHECK(references(*sub) == 3);
  CHECK(*native->SubBuffer(*cl.offset(*cl.offset(base, 4 * alignment, alignment), 100, alignment)) == *sub);
  const absl::StatusOr<cl_mem> longer = native->SubBuffer(*cl.offset(base, 101, 2 * alignment));
  REQUIRE(longer.ok());
  CHECK(*longer != *sub);
  clReleaseMemObject(*longer);
  CHECK(*native->SubBuffer(base) == base.root);
  clReleaseMemObject(base.root);

  for (const std::size_t offset : {alignment / 2, alignment + 1, std::size_t{100}}) {
    const absl::Status refused = native->SubBuffer(*cl.offset(base, 8, offset)).status();
    CHECK(absl::IsFailedPrecondition(refused));
    CHECK(Mentions(refused, std::to_string(offset)));
    CHECK(Mentions(refused, std::to_string(alignment)));
  }
  CHECK(cl.free(base, 8 * alignment, {}).ok());
  // Three references of the caller's are left of `sub`, which keeps its memory.
  CHECK(references(*sub) == 3);
  for (int i = 0; i < 3; ++i) clReleaseMemObject(*sub);
  CHECK(absl::IsInvalidArgument(native->SubBuffer(view).status()));
}

TEST_CASE("a buffer object of the caller's becomes a buffer of the record") {
  const Allocator<OpenClBuf> cl = OpenCl();
  const auto native = Find<OpenClNative>(cl);
  std::vector<std::byte> content = Pattern(3000);
  cl_mem mine =
      clCreateBuffer(native->context(), CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, 3000, content.data(), nullptr);
  REQUIRE(mine != nullptr);
  absl::StatusOr<OpenClBuf> buf = native->Wrap(mine);
  REQUIRE(buf.ok());
  const auto references = [mine] {
    cl_uint count = 0;
    clGetMemObjectInfo(mine, CL_MEM_REFERENCE_COUNT, sizeof count, &count, nullptr);
    return count;
  };
  // Before any command: drivers hold references for those until some time after they are done.
  CHECK(references() == 2);
  CHECK(cl.free(*buf, 3000, {}).ok());
  CHECK(references() == 1);
  buf = native->Wrap(mine);
  REQUIRE(buf.ok());
  CHECK(buf->nbytes == 3000);
  CHECK(Read(cl, *cl.offset(*buf, 100, 50)) == Pattern(100, 50));
  CHECK(absl::IsAlreadyExists(native->Wrap(mine).status()));
  CHECK(cl.free(*buf, 3000, {}).ok());

  CHECK(absl::IsInvalidArgument(native->Wrap(nullptr).status()));
  const cl_buffer_region region = {0, 64};
  cl_mem sub = clCreateSubBuffer(mine, 0, CL_BUFFER_CREATE_TYPE_REGION, &region, nullptr);
  CHECK(absl::IsInvalidArgument(native->Wrap(sub).status()));
  clReleaseMemObject(sub);
  clReleaseMemObject(mine);
  const OwnQueue elsewhere;
  cl_mem foreign = clCreateBuffer(elsewhere.context(), CL_MEM_READ_WRITE, 64, nullptr, nullptr);
  CHECK(absl::IsInvalidArgument(native->Wrap(foreign).status()));
  clReleaseMemObject(foreign);
}

TEST_CASE("a view reads through the packed allocator, which finds the native handles through its box") {
  absl::StatusOr<PackedAllocator> packed = Pack(OpenCl());
  REQUIRE(packed.ok());
  absl::StatusOr<AnyBuf> buf = packed->alloc(1000);
  REQUIRE(buf.ok());
  const absl::StatusOr<AnyBuf> view = packed->offset(*buf, 10, 990);
  REQUIRE(view.ok());
  CHECK(view->get<OpenClBuf>()->offset == 990);
  CHECK(packed->addr(*view)->byte_offset == 990);
  CHECK(Find<OpenClNative>(*packed)->queue() != nullptr);
  CHECK(packed->free(*buf, 1000).ok());
}

}  // namespace
}  // namespace packalloc
