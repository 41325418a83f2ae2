// Devices by name: Open("CUDA:1+lru:max_bytes=2GiB") gives the packed allocator of that device, whatever backends this
// program was built with and whatever this machine has.
//
//   absl::StatusOr<packalloc::PackedAllocator> device = packalloc::Open("CL:0+lru");
//   for (const packalloc::DeviceInfo& d : packalloc::Devices()) {
//     std::cout << d.name << ": " << (d.available ? d.description : d.reason) << '\n';
//   }
//   absl::StatusOr<packalloc::PackedAllocator> best = packalloc::Default();   // PACKALLOC_DEVICE, else CUDA, CL, CPU
//   absl::StatusOr<packalloc::PackedAllocator> mine =                         // over a stream that the engine has
//       packalloc::Open("CUDA:0", packalloc::CudaOptions{.stream = stream});
#ifndef PACKALLOC_REGISTRY_H_
#define PACKALLOC_REGISTRY_H_

#include <any>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "packalloc/backend.h"
#include "packalloc/packed_allocator.h"

namespace packalloc {}  // namespace packalloc

#endif  // PACKALLOC_REGISTRY_H_
