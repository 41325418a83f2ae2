// What the tests of the CUDA backend share: the strict fake driver (test/fake_cuda) under each schedule, and that
// nothing was misused and nothing leaked.
#ifndef PACKALLOC_TEST_BACKENDS_CUDA_FAKE_H_
#define PACKALLOC_TEST_BACKENDS_CUDA_FAKE_H_

#include <cuda.h>
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "packalloc/allocator.h"
#include "packalloc/backends/cuda.h"
#include "test/fake_cuda/fake_cuda.h"

namespace cuda_test {

using packalloc::Allocator;
using packalloc::CudaAllocator;
using packalloc::CudaBuf;
using packalloc::CudaOptions;

// Makes the backend load the fake. Before its first use in the process.
inline void UseFake() { setenv("PACKALLOC_LIBCUDA", FAKE_CUDA_LIBRARY, 1); }

// A fresh driver for one scope; at its end all must be well.
class Fake {
 public:
  explicit Fake(fake_cuda_schedule schedule = FAKE_CUDA_LAZY, int devices = 1) {
    UseFake();
    fake_cuda_reset();
    fake_cuda_set_schedule(schedule);
    fake_cuda_set_devices(devices);
    CHECK(cuInit(0) == CUDA_SUCCESS);
  }
  ~Fake() {
    fake_cuda_clear_failures();
    if (check_leaks) CHECK(fake_cuda_check_leaks() == 0);
    CHECK_MESSAGE(fake_cuda_violation_count() == 0, fake_cuda_report());
    CUcontext current = nullptr;
    CHECK(cuCtxGetCurrent(&current) == CUDA_SUCCESS);
    CHECK(current == nullptr);  // every push was popped
    fake_cuda_reset();
  }
  Fake(const Fake&) = delete;
  Fake& operator=(const Fake&) = delete;

  bool check_leaks = true;
};

inline constexpr fake_cuda_schedule kSchedules[] = {FAKE_CUDA_LAZY, FAKE_CUDA_EAGER, FAKE_CUDA_WORKER};

inline std::string Name(fake_cuda_schedule schedule) {
  return schedule == FAKE_CUDA_LAZY ? "lazy" : schedule == FAKE_CUDA_EAGER ? "eager" : "worker";
}

// Runs `body(schedule)` under each schedule, on a fresh driver each time.
template <typename Body>
void UnderEachSchedule(int devices, Body body) {
  for (const fake_cuda_schedule schedule : kSchedules) {
    INFO("schedule ", Name(schedule));
    const Fake fake(schedule, devices);
    body(schedule);
  }
}

inline Allocator<CudaBuf> Open(const CudaOptions& options = {}) {
  absl::StatusOr<Allocator<CudaBuf>> record = CudaAllocator(options);
  REQUIRE_MESSAGE(record.ok(), record.status().ToString());
  return *std::move(record);
}

template <typename T>
T Must(absl::StatusOr<T> value) {
  REQUIRE_MESSAGE(value.ok(), value.status().ToString());
  return *std::move(value);
}
inline void Must(const absl::Status& status) { REQUIRE_MESSAGE(status.ok(), status.ToString()); }

inline std::vector<std::byte> Pattern(std::size_t nbytes, std::uint32_t seed = 1) {
  std::vector<std::byte> bytes(nbytes);
  for (std::size_t i = 0; i < nbytes; ++i) bytes[i] = static_cast<std::byte>((i * 7 + i / 251 + seed * 31) % 251);
  return bytes;
}

inline std::vector<std::byte> Read(const Allocator<CudaBuf>& record, const CudaBuf& buf) {
  std::vector<std::byte> bytes(buf.nbytes);
  Must(record.copyout(absl::MakeSpan(bytes), buf));
  return bytes;
}

}  // namespace cuda_test

#endif  // PACKALLOC_TEST_BACKENDS_CUDA_FAKE_H_
