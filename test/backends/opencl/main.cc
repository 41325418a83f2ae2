// The main of tests that need an OpenCL device: where there is none they are skipped, visibly (exit status 77).
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>

#include "packalloc/backends/opencl.h"

int main(int argc, char** argv) {
  if (const auto record = packalloc::OpenClAllocator(); !record.ok()) {
    std::printf("SKIPPED: this test needs an OpenCL device (Debian: pocl-opencl-icd), but %s\n",
                record.status().ToString().c_str());
    return 77;
  }
  doctest::Context context(argc, argv);
  return context.run();
}
