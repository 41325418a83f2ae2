// For the files that define entry points: everything between FAKE_CUDA_ABI_BEGIN and FAKE_CUDA_ABI_END is exported.
#ifndef PACKALLOC_TEST_FAKE_CUDA_ABI_H_
#define PACKALLOC_TEST_FAKE_CUDA_ABI_H_

#include "test/fake_cuda/arguments.h"
#include "test/fake_cuda/capture.h"
#include "test/fake_cuda/driver.h"
#include "test/fake_cuda/pool.h"
#include "test/fake_cuda/work.h"

#define FAKE_CUDA_ABI_BEGIN _Pragma("GCC visibility push(default)") extern "C" {
#define FAKE_CUDA_ABI_END \
  }                       \
  _Pragma("GCC visibility pop")

#endif  // PACKALLOC_TEST_FAKE_CUDA_ABI_H_
