// Open over a context and a stream or queue that the caller has, through the C API: taken here from another allocator
// by its native handles. CUDA is the strict fake driver, OpenCL what this machine has.
#include <doctest/doctest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "packalloc/c/packalloc.h"
#ifdef FAKE_CUDA_LIBRARY
#include "test/fake_cuda/fake_cuda.h"
#endif

namespace packalloc {
namespace {

void* Native(packalloc_allocator* device, const char* key) {
  void* handle = nullptr;
  REQUIRE_MESSAGE(packalloc_native_handle(device, key, &handle) == PACKALLOC_OK, packalloc_last_error());
  return handle;
}

// Bytes written through one device are read through the other, after a transfer: they share what was handed over.
void Shares(packalloc_allocator* one, packalloc_allocator* other) {
  std::vector<char> bytes(1000, 'x');
  packalloc_buffer* a = nullptr;
  packalloc_buffer* b = nullptr;
  REQUIRE_MESSAGE(packalloc_alloc(one, 1000, nullptr, &a) == PACKALLOC_OK, packalloc_last_error());
  REQUIRE_MESSAGE(packalloc_alloc(other, 1000, nullptr, &b) == PACKALLOC_OK, packalloc_last_error());
  CHECK(packalloc_copyin(a, bytes.data(), 1000) == PACKALLOC_OK);
  CHECK_MESSAGE(packalloc_copy(b, a, nullptr) == PACKALLOC_OK, packalloc_last_error());
  std::vector<char> got(1000);
  CHECK(packalloc_copyout(got.data(), b, 1000) == PACKALLOC_OK);
  CHECK(got == bytes);
  packalloc_buffer* view = nullptr;
  CHECK(packalloc_offset(b, 10, 3, &view) == PACKALLOC_OK);
  packalloc_device_address base{};
  packalloc_device_address at{};
  CHECK(packalloc_addr(b, &base) == PACKALLOC_OK);
  CHECK(packalloc_addr(view, &at) == PACKALLOC_OK);
  CHECK(at.value + at.byte_offset == base.value + base.byte_offset + 3);
  CHECK(packalloc_free(view) == PACKALLOC_OK);
  CHECK(packalloc_free(a) == PACKALLOC_OK);
  CHECK(packalloc_free(b) == PACKALLOC_OK);
}

#ifdef FAKE_CUDA_LIBRARY
TEST_CASE("CUDA over the caller's context and stream") {
  setenv("PACKALLOC_LIBCUDA", FAKE_CUDA_LIBRARY, 1);
  packalloc_allocator* first = nullptr;
  REQUIRE_MESSAGE(packalloc_open("CUDA", &first) == PACKALLOC_OK, packalloc_last_error());
  packalloc_cuda_options options = PACKALLOC_CUDA_OPTIONS_INIT;
  options.context = Native(first, "cuda.context");
  options.stream = Native(first, "cuda.stream");
  options.has_stream = 1;
  packalloc_allocator* second = nullptr;
  REQUIRE_MESSAGE(packalloc_open_cuda("CUDA:0+lru", &options, &second) == PACKALLOC_OK, packalloc_last_error());
  CHECK(Native(second, "cuda.stream") == options.stream);
  CHECK(Native(second, "cuda.context") == options.context);
  Shares(first, second);
  packalloc_cache_stats stats = PACKALLOC_CACHE_STATS_INIT;
  CHECK(packalloc_get_cache_stats(second, &stats) == PACKALLOC_OK);
  CHECK(stats.cached_bytes == 1000);
  CHECK(packalloc_close(second) == PACKALLOC_OK);

  options = PACKALLOC_CUDA_OPTIONS_INIT;
  options.has_stream = 1;  // the legacy default stream
  REQUIRE_MESSAGE(packalloc_open_cuda("CUDA", &options, &second) == PACKALLOC_OK, packalloc_last_error());
  CHECK(Native(second, "cuda.stream") == nullptr);
  CHECK(packalloc_close(second) == PACKALLOC_OK);
  CHECK(packalloc_close(first) == PACKALLOC_OK);
  CHECK(packalloc_shutdown() == PACKALLOC_OK);
  CHECK(fake_cuda_check_leaks() == 0);
  CHECK_MESSAGE(fake_cuda_violation_count() == 0, fake_cuda_report());
}
#endif

TEST_CASE("OpenCL over the caller's context and queue") {
  packalloc_allocator* first = nullptr;
  if (packalloc_open("CL", &first) != PACKALLOC_OK) {
    MESSAGE("without OpenCL: " << std::string(packalloc_last_error()));
    return;
  }
  packalloc_opencl_options options = PACKALLOC_OPENCL_OPTIONS_INIT;
  options.context = Native(first, "opencl.context");
  options.queue = Native(first, "opencl.queue");
  packalloc_allocator* second = nullptr;
  REQUIRE_MESSAGE(packalloc_open_opencl("CL+lru", &options, &second) == PACKALLOC_OK, packalloc_last_error());
  CHECK(Native(second, "opencl.queue") == options.queue);
  CHECK(Native(second, "opencl.device") == Native(first, "opencl.device"));
  CHECK(Native(second, "opencl.platform") == Native(first, "opencl.platform"));
  Shares(first, second);
  CHECK(packalloc_close(second) == PACKALLOC_OK);

  options.context = nullptr;  // the queue's
  REQUIRE_MESSAGE(packalloc_open_opencl("CL", &options, &second) == PACKALLOC_OK, packalloc_last_error());
  CHECK(Native(second, "opencl.context") == Native(first, "opencl.context"));
  CHECK(packalloc_close(second) == PACKALLOC_OK);
  CHECK(packalloc_close(first) == PACKALLOC_OK);
}

}  // namespace
}  // namespace packalloc
