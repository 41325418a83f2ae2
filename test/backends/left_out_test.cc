// What a build without a backend has in its place: the function is there, says why it cannot, and the rest goes on.
#include <doctest/doctest.h>

#include <string>

#include "absl/status/status.h"
#include "packalloc/backends/cuda.h"
#include "packalloc/backends/opencl.h"

namespace packalloc {
namespace {

void SaysWhy(const absl::Status& status, const std::string& backend) {
  CHECK(absl::IsUnavailable(status));
  CHECK(std::string(status.message()).find("no " + backend + " backend (left out: \"by hand\")") != std::string::npos);
}

TEST_CASE("a backend that was left out of the build is UNAVAILABLE and says why") {
  SaysWhy(CudaAllocator().status(), "CUDA");
  SaysWhy(OpenClAllocator().status(), "OpenCL");
}

}  // namespace
}  // namespace packalloc
