// Kernels: host functions that reach memory through checked accessors.
#include <algorithm>

#include "test/fake_cuda/arguments.h"
#include "test/fake_cuda/work.h"

namespace fake_cuda {
namespace {

// The range of the kernel that covers the access, or null and a violation.
const Range* Covering(const Op& op, uintptr_t address, size_t nbytes, bool writes) {
  for (const Range& range : op.ranges) {
    if (address >= range.begin && address - range.begin <= range.nbytes &&
        nbytes <= range.nbytes - (address - range.begin) && (range.writes || !writes)) {
      return &range;
    }
  }
  Driver& driver = Driver::Get();
  Lock lock(driver.mutex);
  driver.Violation(FAKE_CUDA_OUT_OF_BOUNDS, Format("a kernel %s %zu bytes at 0x%zx, which none of its ranges covers",
                                                   writes ? "writes" : "reads", nbytes, static_cast<size_t>(address)));
  return nullptr;
}

}  // namespace
}  // namespace fake_cuda

#pragma GCC visibility push(default)

int fake_cuda_launch(CUstream stream, fake_cuda_kernel_function function, void* user, const fake_cuda_range* ranges,
                     size_t range_count) {
  using namespace fake_cuda;
  return Enter("fake_cuda_launch", kContext, [&](Call& call) -> CUresult {
    StreamPtr on;
    if (CUresult code = FindStream(call, stream, StreamUse::kOwnContext, &on); code != CUDA_SUCCESS) return code;
    Work work;
    work.call = "a kernel";
    work.kind = WorkKind::kKernel;
    work.kernel = function;
    work.user = user;
    for (size_t i = 0; i < range_count; ++i) {
      if (ranges[i].nbytes == 0) continue;
      Range range;
      CUresult code = DeviceRange(call, ranges[i].address, ranges[i].nbytes, ranges[i].writes != 0, &range);
      if (code != CUDA_SUCCESS) return code;
      work.ranges.push_back(std::move(range));
    }
    return Enqueue(call, on, std::move(work));
  });
}

int fake_cuda_kernel_read(fake_cuda_kernel* kernel, void* dest, uint64_t address, size_t nbytes) {
  const fake_cuda::Range* range = fake_cuda::Covering(*kernel->op, address, nbytes, false);
  if (range == nullptr) return 1;
  fake_cuda::ReadBytes(*range->memory, address, static_cast<std::byte*>(dest), nbytes);
  return 0;
}

int fake_cuda_kernel_write(fake_cuda_kernel* kernel, uint64_t address, const void* src, size_t nbytes) {
  const fake_cuda::Range* range = fake_cuda::Covering(*kernel->op, address, nbytes, true);
  if (range == nullptr) return 1;
  fake_cuda::WriteBytes(*range->memory, address, static_cast<const std::byte*>(src), nbytes);
  return 0;
}

#pragma GCC visibility pop
