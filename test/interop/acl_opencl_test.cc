// Ascend's allocators on OpenCL: blocks are buffer objects, through the library and by wrapping.
#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "packalloc/backends/opencl.h"
#include "packalloc/c/acl.h"
#include "packalloc/interop/acl_export.h"
#include "packalloc/interop/acl_import.h"
#include "packalloc/testing/contract.h"
#include "test/backends/opencl/support.h"
#include "test/interop/acl_support.h"

namespace packalloc::testing {
namespace {

ContractOptions OpenClSkips() {
  ContractOptions options;
  options.skips = WithoutHooks();
  options.skips.merge(WithoutMember("memory_info"));
  for (const char* clause : {"spec.external_ptr", "spec.external_ptr_not_freed", "spec.external_ptr_not_cached"}) {
    options.skips[clause] = "a pointer of the host is no buffer object";
  }
  for (const char* clause : {"host_ptr.reads", "host_ptr.writes", "host_ptr.own_memory", "host_ptr.follows_offset"}) {
    options.skips[clause] = "the blocks were not made with `host`";
  }
  return options;
}

// Callbacks of a program that makes buffer objects itself; a block is a cl_mem.
AclCallbacks BufferObjects(cl_context context) {
  return {context,
          [](void* object, std::size_t nbytes) -> void* {
            cl_int code = CL_SUCCESS;
            cl_mem mem = clCreateBuffer(static_cast<cl_context>(object), CL_MEM_READ_WRITE, nbytes, nullptr, &code);
            return code == CL_SUCCESS ? mem : nullptr;
          },
          nullptr, [](void*, void* block) { clReleaseMemObject(static_cast<cl_mem>(block)); },
          [](void* block) { return block; }};
}

TEST_CASE("out by one way and in by the other keeps the contract on OpenCL") {
  FakeAcl acl;
  std::vector<AclRegistration> registrations;
  RunContract(
      [&] {
        const PackedAllocator packed = *Pack(OpenCl());
        registrations.push_back(
            *ExportAclAllocator(packed, {.stream = acl.stream(), .functions = acl.functions(), .free_at_once = true}));
        return FromAclCallbacks(
            registrations.back().callbacks(), packed,
            {.min_alignment = packed.traits().min_alignment, .max_alloc_bytes = packed.traits().max_alloc_bytes});
      },
      OpenClSkips());
}

TEST_CASE("a program's own buffer objects are wrapped, and let go of before they are freed") {
  const OwnQueue own;
  const PackedAllocator packed = *Pack(OpenCl({.queue = own.queue()}));
  const auto record = *FromAclCallbacks(BufferObjects(own.context()), packed);
  const AclBlock block = *record.alloc(1000, {.zero = true});
  CHECK(record.addr(block).value == reinterpret_cast<std::uintptr_t>(block.block));
  const AclBlock view = *record.offset(block, 500, 13);
  CHECK(record.addr(view) == DeviceAddress{record.addr(block).value, 13});
  CHECK(record.copyin(view, Pattern(500)).ok());
  std::vector<std::byte> got(500);
  CHECK(record.copyout(absl::MakeSpan(got), view).ok());
  CHECK((got == Pattern(500)));
  auto* mem = static_cast<cl_mem>(block.block);
  clRetainMemObject(mem);
  CHECK(record.free(block, 1000, {}).code() == absl::StatusCode::kOk);
  cl_uint references = 0;
  CHECK(clGetMemObjectInfo(mem, CL_MEM_REFERENCE_COUNT, sizeof references, &references, nullptr) == CL_SUCCESS);
  CHECK(references == 1);
  clReleaseMemObject(mem);
}

TEST_CASE("buffer objects of the allocator itself are used as they are") {
  const Allocator<OpenClBuf> typed = OpenCl();
  const auto record = *FromAclCallbacks(BufferObjects(Find<OpenClNative>(typed)->context()), *Pack(typed));
  static OpenClBuf buf;  // what the callbacks below have
  static Allocator<OpenClBuf> made;
  made = typed;
  const AclCallbacks theirs{&made,
                            [](void*, std::size_t nbytes) -> void* {
                              buf = *made.alloc(nbytes, {});
                              return buf.root;
                            },
                            nullptr, [](void*, void*) { CHECK(made.free(buf, buf.nbytes, {}).ok()); },
                            [](void* block) { return block; }};
  const auto same = *FromAclCallbacks(theirs, *Pack(typed));
  const AclBlock block = *same.alloc(100, {});
  CHECK(same.copyin(block, Pattern(100)).ok());
  CHECK((Read(typed, buf) == Pattern(100)));
  CHECK(same.free(block, 100, {}).ok());
  made = {};
}

TEST_CASE("a buffer object of another context is refused, and goes back") {
  const OwnQueue one;
  const OwnQueue other;
  const auto record = *FromAclCallbacks(BufferObjects(one.context()), *Pack(OpenCl({.queue = other.queue()})));
  CHECK(record.alloc(100, {}).status().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("by aclrtMemcpy of the library, which knows that addresses are cl_mem, nobody adds to them") {
  aclrtStream stream = nullptr;
  REQUIRE_MESSAGE(packalloc_acl_create_stream("CL", &stream) == ACL_SUCCESS, packalloc_acl_last_error());
  aclrtAllocator memory = nullptr;
  REQUIRE(packalloc_acl_create_allocator(stream, &memory) == ACL_SUCCESS);
  const AclCallbacks callbacks{memory, &packalloc_acl_alloc, &packalloc_acl_alloc_advise, &packalloc_acl_free,
                               &packalloc_acl_get_addr_from_block};
  AclCallbacks wrapped = callbacks;  // by a framework, whose object the library does not know
  static aclrtAllocator inner;
  inner = memory;
  wrapped.object = &inner;
  wrapped.alloc = [](void*, std::size_t nbytes) { return packalloc_acl_alloc(inner, nbytes); };
  wrapped.free = [](void*, void* block) { packalloc_acl_free(inner, block); };
  for (const AclCallbacks& theirs : {callbacks, wrapped}) {
    for (void* of : {stream, aclrtStream{nullptr}}) {
      const auto record = *FromAclCallbacks(theirs, *LoadAclFunctions(), {.stream = of});
      CHECK_FALSE(record.traits.address_is_pointer);
      CHECK_FALSE(record.supports_offset());
      CHECK(record.alloc(100, {.alignment = 4096}).status().code() == absl::StatusCode::kInvalidArgument);
      const AclBlock one = *record.alloc(1 << 21, {.zero = true});
      const AclBlock other = *record.alloc(1 << 21, {});
      CHECK(record.copyin(one, Pattern(1000)).ok());
      CHECK(record.transfer(other, one, 1 << 21).ok());
      std::vector<std::byte> got(1000);
      CHECK(record.copyout(absl::MakeSpan(got), other).ok());
      CHECK((got == Pattern(1000)));
      CHECK(aclrtMemcpy(one.address, 8, got.data(), 8, ACL_MEMCPY_HOST_TO_HOST) == ACL_ERROR_INVALID_PARAM);
      CHECK(record.free(one, 1 << 21, {.zero = true}).ok());
      CHECK(record.free(other, 1 << 21, {}).ok());
    }
  }
  CHECK(packalloc_acl_destroy_allocator(memory) == ACL_SUCCESS);
  CHECK(packalloc_acl_destroy_stream(stream) == ACL_SUCCESS);
}

TEST_CASE("the library works on a queue that the program has: its blocks are of that context") {
  const OwnQueue own;
  REQUIRE_MESSAGE(packalloc_acl_adopt_stream("CL", own.queue()) == ACL_SUCCESS, packalloc_acl_last_error());
  aclrtAllocator memory = nullptr;
  REQUIRE(packalloc_acl_create_allocator(own.queue(), &memory) == ACL_SUCCESS);
  void* block = packalloc_acl_alloc(memory, 100);
  auto* mem = static_cast<cl_mem>(packalloc_acl_get_addr_from_block(block));
  cl_context context = nullptr;
  CHECK(clGetMemObjectInfo(mem, CL_MEM_CONTEXT, sizeof(cl_context), &context, nullptr) == CL_SUCCESS);
  CHECK(context == own.context());
  const std::vector<std::byte> bytes = Pattern(100);
  CHECK(aclrtMemcpy(mem, 100, bytes.data(), 100, ACL_MEMCPY_HOST_TO_DEVICE) == ACL_SUCCESS);
  std::vector<std::byte> got(100);
  CHECK(clEnqueueReadBuffer(own.queue(), mem, CL_TRUE, 0, 100, got.data(), 0, nullptr, nullptr) == CL_SUCCESS);
  CHECK((got == bytes));
  CHECK(aclrtMemcpy(reinterpret_cast<char*>(mem) + 8, 8, bytes.data(), 8, ACL_MEMCPY_HOST_TO_DEVICE) ==
        ACL_ERROR_INVALID_PARAM);  // nobody adds to a handle
  // And into this program's own copy of packalloc, over the same queue.
  {
    const AclCallbacks callbacks{memory, &packalloc_acl_alloc, &packalloc_acl_alloc_advise, &packalloc_acl_free,
                                 &packalloc_acl_get_addr_from_block};
    const auto record = *FromAclCallbacks(callbacks, *Pack(OpenCl({.queue = own.queue()})));
    const AclBlock imported = *record.alloc(64, {});
    CHECK(record.copyin(imported, Pattern(64)).ok());
    CHECK(record.copyout(absl::MakeSpan(got).subspan(0, 64), imported).ok());
    CHECK(record.free(imported, 64, {}).ok());
  }
  CHECK(packalloc_acl_destroy_allocator(memory) == ACL_SUCCESS);
  CHECK(packalloc_acl_destroy_stream(own.queue()) == ACL_SUCCESS);
}

}  // namespace
}  // namespace packalloc::testing
