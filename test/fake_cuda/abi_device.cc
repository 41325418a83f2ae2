// Initialization, devices.
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "test/fake_cuda/abi.h"

namespace fake_cuda {
namespace {

// Registered by cuInit, as the real driver does: objects built before are destroyed after it has run.
void AtExit() {
  Driver& driver = Driver::Get();
  Lock lock(driver.mutex);
  if (driver.forked()) return;
  driver.exiting = true;
  StopWorker(driver, lock);
  if (driver.settings.mode == FAKE_CUDA_MODE_GONE_AT_EXIT) driver.gone = true;
}

// What the fake has; for the rest of what CUDA 12 knows, 0.
int Attribute(CUdevice_attribute attribute, int device) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      return 9;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return 1;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
      return 32;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
      return device + 1;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
      return 1;
    case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT:
      return 512;
    default:
      return 0;
  }
}

}  // namespace
}  // namespace fake_cuda

using namespace fake_cuda;

FAKE_CUDA_ABI_BEGIN

CUresult cuInit(unsigned int flags) {
  return Enter("cuInit", kAnytime, [&](Call& call) -> CUresult {
    Driver& driver = call.driver;
    if (driver.forked()) {
      return call.Wrong(FAKE_CUDA_FORKED, CUDA_ERROR_NOT_INITIALIZED,
                        "in a forked child of the process that called cuInit");
    }
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    switch (driver.settings.mode) {
      case FAKE_CUDA_MODE_STUB:
      case FAKE_CUDA_MODE_NO_DEVICE:
      case FAKE_CUDA_MODE_MISMATCH:
        return static_cast<CUresult>(driver.settings.mode);
      default:
        break;
    }
    driver.initialized = true;
    driver.process = getpid();
    static const int registered = std::atexit(AtExit);
    (void)registered;
    return CUDA_SUCCESS;
  });
}

CUresult cuDriverGetVersion(int* version) {
  return Enter("cuDriverGetVersion", kAnytime, [&](Call& call) -> CUresult {
    if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *version = call.driver.settings.version;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetCount(int* count) {
  return Enter("cuDeviceGetCount", 0, [&](Call& call) -> CUresult {
    if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *count = call.driver.settings.devices;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  return Enter("cuDeviceGet", 0, [&](Call& call) -> CUresult {
    if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult code = CheckDevice(call, ordinal); code != CUDA_SUCCESS) return code;
    *device = ordinal;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetName(char* name, int len, CUdevice device) {
  return Enter("cuDeviceGetName", 0, [&](Call& call) -> CUresult {
    if (name == nullptr || len <= 0) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult code = CheckDevice(call, device); code != CUDA_SUCCESS) return code;
    std::string text = Format("Strict fake device %d", device);
    size_t length = std::min(text.size(), static_cast<size_t>(len) - 1);
    std::memcpy(name, text.data(), length);
    name[length] = '\0';
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  return Enter("cuDeviceGetUuid_v2", 0, [&](Call& call) -> CUresult {
    if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult code = CheckDevice(call, device); code != CUDA_SUCCESS) return code;
    std::memset(uuid->bytes, 0xFA, sizeof(uuid->bytes));
    uuid->bytes[0] = static_cast<char>(device);
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  return Enter("cuDeviceGetAttribute", 0, [&](Call& call) -> CUresult {
    if (value == nullptr || attribute <= 0 || attribute >= CU_DEVICE_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult code = CheckDevice(call, device); code != CUDA_SUCCESS) return code;
    *value = Attribute(attribute, device);
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  return Enter("cuDeviceTotalMem_v2", 0, [&](Call& call) -> CUresult {
    if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult code = CheckDevice(call, device); code != CUDA_SUCCESS) return code;
    *bytes = call.driver.settings.capacity[device];
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceCanAccessPeer(int* can_access, CUdevice device, CUdevice peer) {
  return Enter("cuDeviceCanAccessPeer", 0, [&](Call& call) -> CUresult {
    if (can_access == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult code = CheckDevice(call, device); code != CUDA_SUCCESS) return code;
    if (CUresult code = CheckDevice(call, peer); code != CUDA_SUCCESS) return code;
    *can_access = call.driver.settings.peers.count({device, peer}) != 0;
    return CUDA_SUCCESS;
  });
}

FAKE_CUDA_ABI_END
