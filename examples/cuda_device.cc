// A CUDA device by name, or over a stream that the engine has. Where there is no CUDA it says why, and succeeds.
#include <iostream>

#include "packalloc/backends/cuda.h"
#include "packalloc/registry.h"

int main() {
  CUstream_st* my_stream = nullptr;  // an engine's own CUstream; null is the legacy default stream

  // [snippet]
  absl::StatusOr<packalloc::PackedAllocator> device = packalloc::Open("CUDA+lru");
  if (!device.ok()) {
    std::cout << "no CUDA: " << device.status().message() << '\n';
    return 0;
  }
  auto native = packalloc::Find<packalloc::CudaNative>(*device);  // its context and stream, to launch kernels on

  packalloc::CudaOptions options{.stream = my_stream};  // or: over the stream that the engine has
  absl::StatusOr<packalloc::PackedAllocator> mine = packalloc::Open("CUDA:0", options);
  // [/snippet]

  packalloc::Shutdown();  // what is opened by name is released with the last of these variables, not kept to the end
  std::cout << device->name() << " on device " << native->device() << ", and on my stream: " << mine.status() << '\n';
  return mine.ok() ? 0 : 1;
}
