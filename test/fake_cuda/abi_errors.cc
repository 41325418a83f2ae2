// The names and meanings of error codes.
#include <cstring>

#include "test/fake_cuda/abi.h"

using namespace fake_cuda;

namespace {

struct Error {
  int code;
  const char* name;
  const char* meaning;
};

// By number, so that an older cuda.h does as well.
constexpr Error kErrors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "an argument is invalid"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "memory ran out"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "the driver is not initialized"},
    {4, "CUDA_ERROR_DEINITIALIZED", "the driver is shutting down"},
    {34, "CUDA_ERROR_STUB_LIBRARY", "the library is the toolkit's stub, not a driver"},
    {36, "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER", "the call needs a newer driver"},
    {46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "the device is busy or unavailable"},
    {100, "CUDA_ERROR_NO_DEVICE", "there is no CUDA device"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "there is no such device"},
    {200, "CUDA_ERROR_INVALID_IMAGE", "the module cannot be loaded"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "the context is invalid, or none is current"},
    {205, "CUDA_ERROR_MAP_FAILED", "mapping failed"},
    {206, "CUDA_ERROR_UNMAP_FAILED", "unmapping failed"},
    {208, "CUDA_ERROR_ALREADY_MAPPED", "already mapped"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "the module has no code for this device"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable memory error on the device"},
    {215, "CUDA_ERROR_UNSUPPORTED_LIMIT", "the limit is not supported"},
    {216, "CUDA_ERROR_CONTEXT_ALREADY_IN_USE", "the context is in use"},
    {217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "the device cannot access this peer"},
    {218, "CUDA_ERROR_INVALID_PTX", "the assembly cannot be compiled"},
    {220, "CUDA_ERROR_NVLINK_UNCORRECTABLE", "uncorrectable error of the link between devices"},
    {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the assembly is for a newer driver"},
    {226, "CUDA_ERROR_CONTAINED", "a contained memory error on the device"},
    {301, "CUDA_ERROR_FILE_NOT_FOUND", "a file was not found"},
    {303, "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED", "a shared object could not be initialized"},
    {304, "CUDA_ERROR_OPERATING_SYSTEM", "the operating system refused"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "the handle is invalid"},
    {401, "CUDA_ERROR_ILLEGAL_STATE", "not allowed in this state"},
    {500, "CUDA_ERROR_NOT_FOUND", "not found"},
    {600, "CUDA_ERROR_NOT_READY", "the work is not finished"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "a kernel or a copy used an illegal address"},
    {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "a launch needs more resources than there are"},
    {702, "CUDA_ERROR_LAUNCH_TIMEOUT", "a kernel ran too long"},
    {704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is enabled already"},
    {705, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "peer access is not enabled"},
    {708, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE", "the primary context is active"},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "the context was destroyed"},
    {710, "CUDA_ERROR_ASSERT", "an assertion failed in a kernel"},
    {711, "CUDA_ERROR_TOO_MANY_PEERS", "too many peers"},
    {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "the host memory is registered already"},
    {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "the host memory is not registered"},
    {714, "CUDA_ERROR_HARDWARE_STACK_ERROR", "stack error on the device"},
    {715, "CUDA_ERROR_ILLEGAL_INSTRUCTION", "illegal instruction on the device"},
    {716, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address on the device"},
    {717, "CUDA_ERROR_INVALID_ADDRESS_SPACE", "wrong address space on the device"},
    {718, "CUDA_ERROR_INVALID_PC", "invalid program counter on the device"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "a launch failed"},
    {720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "a cooperative launch is too large"},
    {721, "CUDA_ERROR_TENSOR_MEMORY_LEAK", "a kernel ended with tensor memory allocated"},
    {800, "CUDA_ERROR_NOT_PERMITTED", "not permitted"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "not supported"},
    {802, "CUDA_ERROR_SYSTEM_NOT_READY", "the system is not ready"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "the driver and the kernel module differ"},
    {804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "forward compatibility is not supported on this device"},
    {805, "CUDA_ERROR_MPS_CONNECTION_FAILED", "the multi-process service cannot be reached"},
    {806, "CUDA_ERROR_MPS_RPC_FAILURE", "a call of the multi-process service failed"},
    {807, "CUDA_ERROR_MPS_SERVER_NOT_READY", "the multi-process service is not ready"},
    {808, "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED", "the multi-process service has too many clients"},
    {810, "CUDA_ERROR_MPS_CLIENT_TERMINATED", "the multi-process service ended this client"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "not permitted while a stream is capturing"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "the capture was invalidated by an earlier error"},
    {902, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "two captures would be merged"},
    {903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "the capture began on another stream"},
    {904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "a forked stream was not joined to the capture's origin"},
    {905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "a dependency would cross the boundary of the capture"},
    {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "an implicit dependency on a capturing stream, from the legacy stream"},
    {907, "CUDA_ERROR_CAPTURED_EVENT", "the event was recorded in a capture"},
    {908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "the capture began on another thread"},
    {909, "CUDA_ERROR_TIMEOUT", "timed out"},
    {910, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", "the executable graph cannot be updated that way"},
    {911, "CUDA_ERROR_EXTERNAL_DEVICE", "a device outside of the driver failed"},
    {912, "CUDA_ERROR_INVALID_CLUSTER_SIZE", "the cluster size is invalid"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

// Programs may ask about any number, also one that the enumeration has no room for: it is read by its bytes.
int NumberOf(const CUresult& code) {
  int number = 0;
  static_assert(sizeof number == sizeof code);
  std::memcpy(&number, &code, sizeof number);
  return number;
}

CUresult Describe(const char* call_name, int code, const char** out, const char* Error::*part) {
  return Enter(call_name, kAnytime, [&](Call&) -> CUresult {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *out = nullptr;
    for (const Error& error : kErrors) {
      if (error.code == code) *out = error.*part;
    }
    return *out == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  });
}

}  // namespace

FAKE_CUDA_ABI_BEGIN

CUresult cuGetErrorName(CUresult code, const char** name) {
  return Describe("cuGetErrorName", NumberOf(code), name, &Error::name);
}

CUresult cuGetErrorString(CUresult code, const char** text) {
  return Describe("cuGetErrorString", NumberOf(code), text, &Error::meaning);
}

FAKE_CUDA_ABI_END
