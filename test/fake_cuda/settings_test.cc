// Injected failures, modes, capacities, counts, and errors' names.
#include <cstring>

#include "test/fake_cuda/fixture.h"

using namespace fake_cuda_test;

namespace {

// A fresh driver whose violations are not printed.
CUcontext Fresh() {
  fake_cuda_reset();
  fake_cuda_set_quiet(1);
  return Start();
}

CUresult TryAlloc(size_t nbytes = kBytes) {
  CUdeviceptr memory = 0;
  return cuMemAlloc_v2(&memory, nbytes);
}

}  // namespace

TEST_CASE("the n-th call of a function fails, and does nothing") {
  Fresh();
  fake_cuda_fail("cuMemAlloc_v2", 2, CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(TryAlloc() == CUDA_SUCCESS);
  CHECK(TryAlloc() == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(TryAlloc() == CUDA_SUCCESS);
  CHECK(fake_cuda_live(FAKE_CUDA_DEVICE_MEMORY) == 2);
  CHECK(fake_cuda_failures_made() == 1);
  CHECK(fake_cuda_calls("cuMemAlloc_v2") == 3);
  CHECK(fake_cuda_calls("*") == fake_cuda_calls("cuMemAlloc_v2") + 3);  // and those of Start
  CHECK(fake_cuda_calls("cuMemFree_v2") == 0);
  CHECK(fake_cuda_violation_count() == 0);
  CHECK(std::strcmp(fake_cuda_called(0), "cuCtxSetCurrent") == 0);
  CHECK(fake_cuda_called(4) == nullptr);
}

TEST_CASE("every call, and any function") {
  Fresh();
  fake_cuda_fail("cuMemAlloc_v2", 0, CUDA_ERROR_UNKNOWN);
  CHECK(TryAlloc() == CUDA_ERROR_UNKNOWN);
  CHECK(TryAlloc() == CUDA_ERROR_UNKNOWN);
  fake_cuda_clear_failures();
  CHECK(TryAlloc() == CUDA_SUCCESS);
  fake_cuda_fail("*", 2, CUDA_ERROR_UNKNOWN);
  CHECK(TryAlloc() == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_ERROR_UNKNOWN);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
}

TEST_CASE("codes that kill a context, and codes that do not") {
  for (int code : {226, 700, 702, 714, 715, 716, 717, 718, 719, 721, 810, 911}) {
    Fresh();
    fake_cuda_set_devices(2);
    CUdeviceptr memory = Alloc();
    fake_cuda_fail("cuStreamSynchronize", 1, code);
    CHECK(cuStreamSynchronize(nullptr) == code);
    CHECK(cuMemFree_v2(memory) == code);
    CHECK(TryAlloc() == code);
    CHECK(cuStreamSynchronize(nullptr) == code);
    // What can be done without a context goes on, and so does another device.
    int count = 0;
    OK(cuDeviceGetCount(&count));
    CUcontext second = nullptr;
    OK(cuDevicePrimaryCtxRetain(&second, 1));
    OK(cuCtxPushCurrent_v2(second));
    CHECK(TryAlloc() == CUDA_SUCCESS);
    CHECK(fake_cuda_failures_made() == 1);
  }
  for (int code : {2, 704, 705, 708, 712, 713, 720, 801, 900, 999}) {
    Fresh();
    fake_cuda_fail("cuStreamSynchronize", 1, code);
    CHECK(cuStreamSynchronize(nullptr) == code);
    CHECK(cuStreamSynchronize(nullptr) == CUDA_SUCCESS);
  }
}

TEST_CASE("what was in a context that died is no leak") {
  Fresh();
  Alloc();
  NewStream();
  NewEvent();
  Pinned();
  fake_cuda_fail("cuCtxSynchronize", 1, CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(fake_cuda_check_leaks() == 0);
}

TEST_CASE("modes of cuInit") {
  for (fake_cuda_mode mode : {FAKE_CUDA_MODE_STUB, FAKE_CUDA_MODE_NO_DEVICE, FAKE_CUDA_MODE_MISMATCH}) {
    fake_cuda_reset();
    fake_cuda_set_mode(mode);
    CHECK(cuInit(0) == static_cast<CUresult>(mode));
    int version = 0;
    OK(cuDriverGetVersion(&version));
    CHECK(version == 13000);
  }
  fake_cuda_reset();
  fake_cuda_set_version(9000);
  int version = 0;
  OK(cuDriverGetVersion(&version));
  CHECK(version == 9000);
}

TEST_CASE("a driver that is gone answers every call with 4, and counts them") {
  Fresh();
  CUdeviceptr memory = Alloc();
  fake_cuda_set_mode(FAKE_CUDA_MODE_DEINITIALIZED);
  CHECK(cuMemFree_v2(memory) == CUDA_ERROR_DEINITIALIZED);
  CHECK(cuInit(0) == CUDA_ERROR_DEINITIALIZED);
  int count = 0;
  CHECK(cuDeviceGetCount(&count) == CUDA_ERROR_DEINITIALIZED);
  CHECK(fake_cuda_calls_when_gone() == 3);
  CHECK(fake_cuda_violation_count() == 0);
}

TEST_CASE("devices: how many, which") {
  fake_cuda_reset();
  fake_cuda_set_devices(0);
  OK(cuInit(0));
  int count = -1;
  OK(cuDeviceGetCount(&count));
  CHECK(count == 0);
  CUdevice device = 0;
  CHECK(cuDeviceGet(&device, 0) == CUDA_ERROR_INVALID_DEVICE);
  fake_cuda_set_devices(3);
  OK(cuDeviceGet(&device, 2));
  CHECK(cuDeviceGet(&device, 3) == CUDA_ERROR_INVALID_DEVICE);
  CHECK(cuDeviceGet(&device, -1) == CUDA_ERROR_INVALID_DEVICE);
  char name[16];
  OK(cuDeviceGetName(name, sizeof(name), 2));
  CHECK(std::strlen(name) == sizeof(name) - 1);
  int value = 0;
  OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 2));
  CHECK(value == 1);
}

TEST_CASE("capacity, and what is free of it") {
  Fresh();
  fake_cuda_set_capacity(0, 3 * kBytes);
  size_t free = 0, total = 0;
  OK(cuMemGetInfo_v2(&free, &total));
  CHECK(free == 3 * kBytes);
  CHECK(total == 3 * kBytes);
  CUdeviceptr memory = Alloc(2 * kBytes);
  CHECK(TryAlloc(kBytes + 1) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(TryAlloc(SIZE_MAX) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(TryAlloc(0) == CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr managed = 0;
  CHECK(cuMemAllocManaged(&managed, kBytes + 1, CU_MEM_ATTACH_GLOBAL) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(TryAlloc(kBytes) == CUDA_SUCCESS);
  OK(cuMemGetInfo_v2(&free, &total));
  CHECK(free == 0);
  OK(cuMemFree_v2(memory));
  CHECK(fake_cuda_bytes_used(0) == kBytes);
}

TEST_CASE("pinned capacity") {
  Fresh();
  fake_cuda_set_pinned_capacity(2 * kBytes);
  void* pointer = nullptr;
  CHECK(cuMemHostAlloc(&pointer, 2 * kBytes + 1, 0) == CUDA_ERROR_OUT_OF_MEMORY);
  unsigned char* pinned = Pinned(2 * kBytes);
  CHECK(cuMemHostAlloc(&pointer, 1, 0) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(fake_cuda_pinned_bytes() == 2 * kBytes);
  OK(cuMemFreeHost(pinned));
  CHECK(cuMemHostAlloc(&pointer, 1, 0) == CUDA_SUCCESS);
}

TEST_CASE("registered memory overlaps nothing") {
  Fresh();
  std::vector<unsigned char> bytes(kBytes);
  OK(cuMemHostRegister_v2(bytes.data(), kBytes, 0));
  CHECK(cuMemHostRegister_v2(bytes.data(), kBytes, 0) == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  CHECK(cuMemHostRegister_v2(bytes.data() + 10, 1, 0) == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  CHECK(cuMemHostRegister_v2(Pinned(), 1, 0) == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  OK(cuMemHostUnregister(bytes.data()));
  OK(cuMemHostRegister_v2(bytes.data(), kBytes, 0));
  OK(cuMemHostUnregister(bytes.data()));
}

TEST_CASE("a reset forgets everything, but no address or handle comes back") {
  Fresh();
  CUdeviceptr memory = Alloc();
  CUstream stream = NewStream();
  fake_cuda_fail("*", 0, 999);
  fake_cuda_reset();
  fake_cuda_set_quiet(1);
  CHECK(fake_cuda_calls("*") == 0);
  CHECK(fake_cuda_live(FAKE_CUDA_CONTEXT) == 0);
  CHECK(fake_cuda_check_leaks() == 0);
  CUcontext current = reinterpret_cast<CUcontext>(&memory);
  OK(cuInit(0));
  OK(cuCtxGetCurrent(&current));
  CHECK(current == nullptr);
  Start();
  CHECK(cuMemFree_v2(memory) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuStreamSynchronize(stream) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(Alloc() != memory);
  CHECK(NewStream() != stream);
  CHECK(fake_cuda_violation_count() == 2);
  fake_cuda_clear_violations();
  CHECK(fake_cuda_violation_count() == 0);
}

TEST_CASE("the report") {
  Fresh();
  CHECK(std::strcmp(fake_cuda_report(), "") == 0);
  CHECK(fake_cuda_violation(0) == nullptr);
  CHECK(cuMemFree_v2(Alloc() + 8) == CUDA_ERROR_INVALID_VALUE);
  CHECK(std::strstr(fake_cuda_violation(0), "wrong-free: cuMemFree_v2: 0x") == fake_cuda_violation(0));
  CHECK(std::string(fake_cuda_report()) == std::string(fake_cuda_violation(0)) + "\n");
  CHECK(fake_cuda_violation(1) == nullptr);
  fake_cuda_reset();
}

TEST_CASE("every code has a name and a meaning") {
  for (int code : {0,   1,   2,   3,   4,   34,  100, 101, 201, 217, 226, 400, 401, 500, 600, 700, 702, 704, 705, 709,
                   712, 713, 714, 719, 721, 801, 803, 810, 900, 901, 902, 903, 904, 905, 906, 907, 908, 911, 999}) {
    INFO(code);
    const char *name = nullptr, *text = nullptr;
    OK(cuGetErrorName(static_cast<CUresult>(code), &name));
    OK(cuGetErrorString(static_cast<CUresult>(code), &text));
    CHECK(std::strncmp(name, "CUDA_", 5) == 0);
    CHECK(std::strlen(text) > 3);
  }
  const char* name = "x";
  CHECK(cuGetErrorName(static_cast<CUresult>(998), &name) == CUDA_ERROR_INVALID_VALUE);  // no such code
  CHECK(name == nullptr);
}
