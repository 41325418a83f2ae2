// Which device, context and queue a record is on, and what happens to it in a forked child.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "packalloc/allocator.h"
#include "packalloc/backend.h"
#include "packalloc/backends/opencl.h"
#include "packalloc/packed_allocator.h"
#include "packalloc/registry.h"
#include "test/backends/opencl/support.h"

namespace packalloc::internal {
Backend OpenClBackend();
}

namespace packalloc {
namespace {

using testing::Kernel;
using testing::OpenCl;
using testing::OwnQueue;
using testing::Pattern;
using testing::Read;

cl_uint References(cl_command_queue queue) {
  cl_uint count = 0;
  clGetCommandQueueInfo(queue, CL_QUEUE_REFERENCE_COUNT, sizeof count, &count, nullptr);
  return count;
}

TEST_CASE("devices are named by index and by a part of their name") {
  const Backend backend = internal::OpenClBackend();
  const std::vector<DeviceInfo> devices = backend.devices();
  REQUIRE(!devices.empty());
  for (std::size_t i = 0; i < devices.size(); ++i) {
    CHECK(devices[i].available);
    CHECK(devices[i].name == "CL:" + std::to_string(i));
    std::vector<std::string> keys;
    for (const auto& [key, value] : devices[i].properties) {
      keys.push_back(key);
      CHECK_FALSE(value.empty());
    }
    CHECK(keys == std::vector<std::string>{"platform", "version", "memory", "alignment", "maximum allocation"});
    CHECK(*backend.canonical_target(std::to_string(i)) == std::to_string(i));
    const auto twins = std::count_if(devices.begin(), devices.end(), [&](const DeviceInfo& other) {
      return other.description == devices[i].description;
    });
    for (const std::string& part : {devices[i].description, absl::AsciiStrToUpper(devices[i].description)}) {
      const absl::StatusOr<std::string> target = backend.canonical_target(part);
      // Two devices of one name are told apart by index only.
      CHECK(target.status().code() == (twins == 1 ? absl::StatusCode::kOk : absl::StatusCode::kInvalidArgument));
      if (target.ok()) CHECK(*target == std::to_string(i));
    }
    const absl::StatusOr<PackedAllocator> opened = backend.open({.target = std::to_string(i), .options = {}});
    REQUIRE(opened.ok());
    CHECK(opened->name() == devices[i].name);
    CHECK(testing::DeviceName(Find<OpenClNative>(*opened)->device()) == devices[i].description);
  }
  CHECK(*backend.canonical_target("") == "0");
  for (const char* missing : {"7", "99999999999999999999", "no such device"}) {
    CHECK(absl::IsNotFound(backend.canonical_target(missing).status()));
    CHECK(absl::IsNotFound(OpenClAllocator({.device = missing}).status()));
  }
  if (devices.size() > 1) {
    // What fits several is no name.
    const std::string both = "-";
    CHECK(absl::IsInvalidArgument(OpenClAllocator({.device = both}).status()));
  }
  CHECK(absl::IsInvalidArgument(backend.open({.target = "0", .options = 5}).status()));
  CHECK(absl::IsInvalidArgument(OpenClAllocator({.max_copy_bytes = 0}).status()));
}

TEST_CASE("records on one platform share a context, which goes with the last of them") {
  cl_context context = nullptr;
  {
    const Allocator<OpenClBuf> a = OpenCl();
    const Allocator<OpenClBuf> b = OpenCl();
    context = Find<OpenClNative>(a)->context();
    CHECK(Find<OpenClNative>(b)->context() == context);
    CHECK(Find<OpenClNative>(b)->queue() != Find<OpenClNative>(a)->queue());
    CHECK(a.traits.transfer_domain == b.traits.transfer_domain);
    const OwnQueue shared(0, /*own_context=*/false);
    CHECK(shared.context() == context);
    CHECK(OpenCl({.queue = shared.queue()}).traits.transfer_domain == a.traits.transfer_domain);
    clRetainContext(context);
  }
  cl_uint references = 0;
  clGetContextInfo(context, CL_CONTEXT_REFERENCE_COUNT, sizeof references, &references, nullptr);
  CHECK(references == 1);
  clReleaseContext(context);
}

TEST_CASE("the caller's queue is adopted, retained, and given back with the last copy of the record") {
  const OwnQueue own;
  const cl_uint before = References(own.queue());
  {
    std::unique_ptr<Allocator<OpenClBuf>> cl =
        std::make_unique<Allocator<OpenClBuf>>(OpenCl({.context = own.context(), .queue = own.queue()}));
    const auto native = Find<OpenClNative>(*cl);
    CHECK(native->queue() == own.queue());
    CHECK(native->context() == own.context());
    CHECK(native->device() == own.device());
    CHECK(References(own.queue()) == before + 1);
    const Allocator<OpenClBuf> copy = *cl;
    cl.reset();
    CHECK(References(own.queue()) == before + 1);
  }
  // No command was enqueued: drivers hold a reference for each until some time after it is done.
  CHECK(References(own.queue()) == before);
  {
    const Allocator<OpenClBuf> cl = OpenCl({.queue = own.queue()});
    const OpenClBuf buf = *cl.alloc(100, {});
    CHECK(cl.copyin(buf, Pattern(100)).ok());
    CHECK(Read(cl, buf) == Pattern(100));
    CHECK(cl.free(buf, 100, {}).ok());
  }

  const Allocator<OpenClBuf> by_context = OpenCl({.context = own.context()});
  CHECK(Find<OpenClNative>(by_context)->context() == own.context());
  CHECK(Find<OpenClNative>(by_context)->queue() != own.queue());
  const OwnQueue another;
  CHECK(absl::IsInvalidArgument(OpenClAllocator({.context = another.context(), .queue = own.queue()}).status()));
  CHECK(OpenClAllocator({.device = "0", .queue = own.queue()}).ok());
  if (OpenClAllocator({.device = "1"}).ok()) {
    CHECK(absl::IsInvalidArgument(OpenClAllocator({.device = "1", .queue = own.queue()}).status()));
    CHECK(absl::IsInvalidArgument(OpenClAllocator({.device = "1", .context = own.context()}).status()));
  }
}

TEST_CASE("Open takes the caller's queue, on whatever device it is, and holds it against the device named") {
  const std::string last = OpenClAllocator({.device = "1"}).ok() ? "1" : "0";
  const OwnQueue own(0, /*own_context=*/true, last);
  const absl::StatusOr<PackedAllocator> opened = Open("CL", OpenClOptions{.queue = own.queue()});
  REQUIRE(opened.ok());
  CHECK(Find<OpenClNative>(*opened)->queue() == own.queue());
  CHECK(opened->name() == "CL:" + last);
  CHECK(Find<OpenClNative>(*Open("CL:" + last + "+lru", OpenClOptions{.queue = own.queue()}))->queue() == own.queue());
  if (last == "1") CHECK(absl::IsInvalidArgument(Open("CL:0", OpenClOptions{.queue = own.queue()}).status()));
}

TEST_CASE("a kernel reads a view by root and offset, and by its sub-buffer") {
  const Allocator<OpenClBuf> cl = OpenCl();
  const auto native = Find<OpenClNative>(cl);
  Kernel at_offset(native->context(), native->device(),
                   "__kernel void sum(__global const uchar* root, ulong offset, __global uint* out, uint n) {"
                   "  uint s = 0; for (uint i = 0; i < n; ++i) s += root[offset + i]; *out = s; }",
                   "sum");
  Kernel in_place(native->context(), native->device(),
                  "__kernel void sum(__global const uchar* data, __global uint* out, uint n) {"
                  "  uint s = 0; for (uint i = 0; i < n; ++i) s += data[i]; *out = s; }",
                  "sum");
  const std::size_t alignment = cl.traits.min_alignment;
  const OpenClBuf base = *cl.alloc(8 * alignment, {});
  REQUIRE(cl.copyin(base, Pattern(8 * alignment)).ok());
  const OpenClBuf out = *cl.alloc(sizeof(cl_uint), {});
  constexpr cl_uint n = 77;
  const auto expected = [](std::size_t offset) {
    cl_uint sum = 0;
    for (const std::byte byte : Pattern(n, static_cast<unsigned>(offset))) sum += std::to_integer<cl_uint>(byte);
    return sum;
  };
  const auto result = [&cl, &out] {
    cl_uint value = 0;
    CHECK(cl.copyout(absl::MakeSpan(reinterpret_cast<std::byte*>(&value), sizeof value), out).ok());
    return value;
  };
  for (const std::size_t offset : {std::size_t{0}, std::size_t{3}, alignment + 1, 3 * alignment}) {
    const OpenClBuf view = *cl.offset(base, n, offset);
    at_offset.Set(0, view.root);
    at_offset.Set(1, cl_ulong{view.offset});
    at_offset.Set(2, out.root);
    at_offset.Set(3, n);
    at_offset.Run(native->queue(), 1);
    CHECK(result() == expected(offset));
  }
  const absl::StatusOr<cl_mem> sub = native->SubBuffer(*cl.offset(base, n, 2 * alignment));
  REQUIRE(sub.ok());
  in_place.Set(0, *sub);
  in_place.Set(1, out.root);
  in_place.Set(2, n);
  in_place.Run(native->queue(), 1);
  CHECK(result() == expected(2 * alignment));
  clReleaseMemObject(*sub);
  CHECK(cl.free(base, 8 * alignment, {}).ok());
  CHECK(cl.free(out, sizeof(cl_uint), {}).ok());
}

TEST_CASE("a forked child gets an error at once, and its destructors stay silent") {
  auto cl = std::make_unique<Allocator<OpenClBuf>>(OpenCl());
  const OpenClBuf buf = *cl->alloc(4096, {});
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    alarm(20);  // should it hang
    std::vector<std::byte> host(16);
    const bool good =
        absl::IsFailedPrecondition(cl->alloc(4096, {}).status()) && absl::IsFailedPrecondition(cl->copyin(buf, host)) &&
        absl::IsFailedPrecondition(cl->copyout(absl::MakeSpan(host), buf)) &&
        absl::IsFailedPrecondition(cl->transfer(buf, buf, 16)) && absl::IsFailedPrecondition(cl->synchronize()) &&
        absl::IsFailedPrecondition(cl->free(buf, 4096, {})) &&
        absl::IsFailedPrecondition(Find<OpenClNative>(*cl)->SubBuffer(buf).status()) &&
        absl::IsFailedPrecondition(OpenClAllocator().status()) &&
        !internal::OpenClBackend().devices().front().available && cl->offset(buf, 8, 8).ok();
    cl.reset();
    _exit(good ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(cl->free(buf, 4096, {}).ok());
}

}  // namespace
}  // namespace packalloc
