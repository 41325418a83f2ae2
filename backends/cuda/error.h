// What the driver's error codes mean, and how they are told.
#ifndef PACKALLOC_BACKENDS_CUDA_ERROR_H_
#define PACKALLOC_BACKENDS_CUDA_ERROR_H_

#include <cuda.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "backends/cuda/driver.h"

namespace packalloc::internal {

// "cuMemAlloc_v2 of 64 bytes failed with CUDA_ERROR_OUT_OF_MEMORY (2): out of memory". `what` begins the sentence.
std::string DescribeCudaError(const CudaDriver& driver, absl::string_view what, CUresult result);

// After these the context that the call ran in is lost, and with it all of its memory.
bool IsSticky(CUresult result);

// `result`, not CUDA_SUCCESS and not sticky, as a status.
absl::Status CudaError(const CudaDriver& driver, absl::string_view what, CUresult result);

// What every call answers in a forked child.
absl::Status ForkedChild();

}  // namespace packalloc::internal

#endif  // PACKALLOC_BACKENDS_CUDA_ERROR_H_
