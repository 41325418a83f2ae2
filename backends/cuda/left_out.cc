// CudaAllocator in a build without cuda.h, so that programs that try it link everywhere.
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "packalloc/allocator.h"
#include "packalloc/backends/cuda.h"

namespace packalloc {

absl::StatusOr<Allocator<CudaBuf>> CudaAllocator(const CudaOptions& options) {
  static_cast<void>(options);
  return absl::UnavailableError("this build of packalloc has no CUDA backend (" PACKALLOC_CUDA_LEFT_OUT ")");
}

}  // namespace packalloc
