#include "backends/cuda/error.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace packalloc::internal {
namespace {

absl::StatusCode CodeOf(CUresult result) {
  switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
      return absl::StatusCode::kResourceExhausted;
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_HANDLE:
    case CUDA_ERROR_INVALID_CONTEXT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
      return absl::StatusCode::kInvalidArgument;
    case CUDA_ERROR_NOT_INITIALIZED:
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_STUB_LIBRARY:
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
    case CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
      return absl::StatusCode::kUnavailable;
    case CUDA_ERROR_INVALID_DEVICE:
      return absl::StatusCode::kNotFound;
    case CUDA_ERROR_NOT_SUPPORTED:
      return absl::StatusCode::kUnimplemented;
    case CUDA_ERROR_NOT_PERMITTED:
      return absl::StatusCode::kPermissionDenied;
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
    case CUDA_ERROR_STREAM_CAPTURE_INVALIDATED:
    case CUDA_ERROR_STREAM_CAPTURE_MERGE:
    case CUDA_ERROR_STREAM_CAPTURE_UNMATCHED:
    case CUDA_ERROR_STREAM_CAPTURE_UNJOINED:
    case CUDA_ERROR_STREAM_CAPTURE_ISOLATION:
    case CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
    case CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD:
      return absl::StatusCode::kFailedPrecondition;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

std::string DescribeCudaError(const CudaDriver& driver, absl::string_view what, CUresult result) {
  if (result == CUDA_ERROR_DEINITIALIZED) return absl::StrCat(what, ": the CUDA driver has shut down");
  const char* name = nullptr;
  const char* text = nullptr;
  if (driver.Call(driver.cuGetErrorName, result, &name) != CUDA_SUCCESS || name == nullptr) name = "CUDA error";
  if (driver.Call(driver.cuGetErrorString, result, &text) != CUDA_SUCCESS || text == nullptr) text = "no description";
  return absl::StrCat(what, " failed with ", name, " (", static_cast<int>(result), "): ", text);
}

bool IsSticky(CUresult result) {
  switch (static_cast<int>(result)) {  // numbers: older headers lack some names
    case 226:                          // CUDA_ERROR_CONTAINED
    case 700:                          // CUDA_ERROR_ILLEGAL_ADDRESS
    case 702:                          // CUDA_ERROR_LAUNCH_TIMEOUT
    case 714:                          // CUDA_ERROR_HARDWARE_STACK_ERROR
    case 715:                          // CUDA_ERROR_ILLEGAL_INSTRUCTION
    case 716:                          // CUDA_ERROR_MISALIGNED_ADDRESS
    case 717:                          // CUDA_ERROR_INVALID_ADDRESS_SPACE
    case 718:                          // CUDA_ERROR_INVALID_PC
    case 719:                          // CUDA_ERROR_LAUNCH_FAILED
    case 721:                          // CUDA_ERROR_TENSOR_MEMORY_LEAK
    case 810:                          // CUDA_ERROR_MPS_CLIENT_TERMINATED
    case 911:                          // CUDA_ERROR_EXTERNAL_DEVICE
      return true;
    default:
      return false;
  }
}

absl::Status CudaError(const CudaDriver& driver, absl::string_view what, CUresult result) {
  return absl::Status(CodeOf(result), DescribeCudaError(driver, what, result));
}

absl::Status ForkedChild() {
  return absl::FailedPreconditionError(
      "this process was forked from the one that started the CUDA driver, which does not survive a fork; open CUDA "
      "devices after the fork, or start the child by exec");
}

}  // namespace packalloc::internal
