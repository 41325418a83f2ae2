// The main of tests with the fault layer, which has to be there before the first OpenCL call.
#include "test/backends/opencl/with_fault_layer.h"

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>

#include "packalloc/backends/opencl.h"

namespace packalloc::testing {

FaultLayerControl* layer = nullptr;

}  // namespace packalloc::testing

int main(int argc, char** argv) {
  packalloc::testing::layer = packalloc::testing::LoadFaultLayer(PACKALLOC_FAULT_LAYER);
  if (packalloc::testing::layer == nullptr) {
    std::printf("the fault layer %s cannot be loaded\n", PACKALLOC_FAULT_LAYER);
    return 1;
  }
  if (const auto record = packalloc::OpenClAllocator(); !record.ok()) {
    std::printf("SKIPPED: this test needs an OpenCL device (Debian: pocl-opencl-icd), but %s\n",
                record.status().ToString().c_str());
    return 77;
  }
  if (packalloc::testing::layer->calls() == 0) {
    std::printf("SKIPPED: this test needs an OpenCL loader that supports layers (ocl-icd from 2.3.0)\n");
    return 77;
  }
  doctest::Context context(argc, argv);
  return context.run();
}
