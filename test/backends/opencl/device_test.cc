// What every device has to survive, on OpenCL.
#include <doctest/doctest.h>

#include "packalloc/backends/opencl.h"
#include "packalloc/packed_allocator.h"
#include "test/backends/device_cases.h"
#include "test/backends/opencl/support.h"
#include "test/backends/opencl/with_fault_layer.h"

namespace packalloc {
namespace {

using testing::layer;

TEST_CASE("OpenCL survives what every device has to") {
  layer->Reset();
  testing::RunDeviceCases({
      .open = [] { return *Pack(testing::OpenCl()); },
      .live = [] { return layer->live_buffers(); },
      .calls = [] { return layer->calls(); },
      .allocations = [] { return layer->calls("clCreateBuffer"); },
      .set_capacity = [](std::size_t nbytes) { layer->set_capacity(nbytes); },
      .refuse_allocation = [](int nth) { layer->Fail("clCreateBuffer", nth, CL_INVALID_DEVICE); },
      .fail_write = [](int nth) { layer->Fail("clEnqueueWriteBuffer", nth, CL_INVALID_OPERATION); },
      .heal = [] { layer->Fail("", 1, CL_SUCCESS, 0); },
  });
  CHECK(layer->bad_releases() == 0);
  layer->Reset();
}

}  // namespace
}  // namespace packalloc
