// For the fake driver's own tests: each runs its body once under every schedule, on a driver that was just reset.
#ifndef PACKALLOC_TEST_FAKE_CUDA_FIXTURE_H_
#define PACKALLOC_TEST_FAKE_CUDA_FIXTURE_H_

#include <cuda.h>
#include <doctest/doctest.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "test/fake_cuda/fake_cuda.h"

#define OK(call) REQUIRE((call) == CUDA_SUCCESS)

namespace fake_cuda_test {

inline constexpr size_t kBytes = 1000;

inline const char* Name(fake_cuda_schedule schedule) {
  static constexpr const char* kNames[] = {"lazy", "eager", "worker"};
  return kNames[schedule];
}

// cuInit, and the primary context of device 0 current on this thread.
inline CUcontext Start() {
  OK(cuInit(0));
  CUcontext context;
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
  return context;
}

// The end of a program that frees all it made; `finish` first undoes what the body did.
inline void End() {
  OK(cuCtxSetCurrent(nullptr));
  OK(cuDevicePrimaryCtxRelease_v2(0));
}

// body() on a fresh, started driver under each schedule. Then it must have been reported as `expected` says: exactly
// `count` violations, all of that kind.
inline void Expect(fake_cuda_kind expected, uint64_t count, const std::function<void()>& body) {
  for (fake_cuda_schedule schedule : {FAKE_CUDA_LAZY, FAKE_CUDA_EAGER, FAKE_CUDA_WORKER}) {
    fake_cuda_reset();
    fake_cuda_set_schedule(schedule);
    fake_cuda_set_quiet(1);
    Start();
    body();
    INFO("schedule: ", Name(schedule));
    INFO(fake_cuda_report());
    CHECK(fake_cuda_violations_of(expected) == count);
    CHECK(fake_cuda_violation_count() == count);
    fake_cuda_reset();
  }
}

// body() is a correct program, but for the retained context that it may leave.
inline void ExpectNothing(const std::function<void()>& body) {
  for (fake_cuda_schedule schedule : {FAKE_CUDA_LAZY, FAKE_CUDA_EAGER, FAKE_CUDA_WORKER}) {
    fake_cuda_reset();
    fake_cuda_set_schedule(schedule);
    Start();
    body();
    End();
    INFO("schedule: ", Name(schedule));
    fake_cuda_check_leaks();
    INFO(fake_cuda_report());
    CHECK(fake_cuda_violation_count() == 0);
    fake_cuda_reset();
  }
}

inline std::vector<unsigned char> Pattern(size_t nbytes = kBytes, unsigned first = 1) {
  std::vector<unsigned char> bytes(nbytes);
  for (size_t i = 0; i < nbytes; ++i) bytes[i] = static_cast<unsigned char>((first + i) % 251);
  return bytes;
}

inline CUdeviceptr Alloc(size_t nbytes = kBytes) {
  CUdeviceptr address = 0;
  OK(cuMemAlloc_v2(&address, nbytes));
  return address;
}

inline unsigned char* Pinned(size_t nbytes = kBytes) {
  void* pointer = nullptr;
  OK(cuMemHostAlloc(&pointer, nbytes, CU_MEMHOSTALLOC_PORTABLE));
  return static_cast<unsigned char*>(pointer);
}

inline CUstream NewStream(unsigned flags = CU_STREAM_NON_BLOCKING) {
  CUstream stream = nullptr;
  OK(cuStreamCreate(&stream, flags));
  return stream;
}

inline CUevent NewEvent() {
  CUevent event = nullptr;
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  return event;
}

}  // namespace fake_cuda_test

#endif  // PACKALLOC_TEST_FAKE_CUDA_FIXTURE_H_
