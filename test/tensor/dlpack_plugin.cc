// A library with packalloc in it that exports a tensor, for the test that closes it.
#include "packalloc/backends/cpu.h"
#include "packalloc/tensor/dlpack.h"
#include "packalloc/tensor/tensor_pool.h"

extern "C" DLManagedTensor* packalloc_test_export() {
  using namespace packalloc;
  const Tensor tensor = *TensorPool::Make(*Pack(CpuAllocator()))->Empty({1}, kUInt8);
  const std::byte seven[] = {std::byte{7}};
  if (!tensor.CopyIn(seven).ok()) return nullptr;
  return ToDlpack(tensor)->release();
}
