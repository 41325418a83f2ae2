// What every device has to survive, on CUDA over the strict fake driver.
#include <doctest/doctest.h>

#include "packalloc/packed_allocator.h"
#include "test/backends/cuda_fake.h"
#include "test/backends/device_cases.h"

namespace cuda_test {
namespace {

// In the primary context of the first device.
template <typename Call>
void InContext(Call call) {
  CUcontext context = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
  REQUIRE(cuCtxPushCurrent(context) == CUDA_SUCCESS);
  CHECK(call() == CUDA_SUCCESS);
  REQUIRE(cuCtxPopCurrent(&context) == CUDA_SUCCESS);
  REQUIRE(cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS);
}

TEST_CASE("CUDA survives what every device has to") {
  UnderEachSchedule(1, [](fake_cuda_schedule) {
    packalloc::testing::RunDeviceCases({
        .open = [] { return Must(packalloc::Pack(Open({.staging_slot_bytes = 65536}))); },
        .live = [] { return fake_cuda_live(FAKE_CUDA_DEVICE_MEMORY) + fake_cuda_live(FAKE_CUDA_PINNED_MEMORY); },
        .calls = [] { return fake_cuda_calls("*"); },
        .allocations = [] { return fake_cuda_calls("cuMemAlloc_v2"); },
        .set_capacity = [](std::size_t nbytes) { fake_cuda_set_capacity(0, nbytes); },
        .refuse_allocation =
            [](int nth) {
              fake_cuda_fail("cuMemAlloc_v2", static_cast<std::uint64_t>(nth), CUDA_ERROR_INVALID_DEVICE);
            },
        .fail_write =
            [](int nth) {
              fake_cuda_fail("cuMemcpyHtoDAsync_v2", static_cast<std::uint64_t>(nth), CUDA_ERROR_INVALID_VALUE);
            },
        .heal = fake_cuda_clear_failures,
        // CUDA wraps what it knows: registered host memory.
        .external = {.host = true},
        .make_known =
            [](void* memory, std::size_t nbytes) {
              InContext([&] { return cuMemHostRegister(memory, nbytes, CU_MEMHOSTREGISTER_PORTABLE); });
            },
        .forget = [](void* memory) { InContext([&] { return cuMemHostUnregister(memory); }); },
    });
  });
}

}  // namespace
}  // namespace cuda_test
