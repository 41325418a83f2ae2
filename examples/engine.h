// What the mock's example tests: an engine that doubles numbers on whatever device it is given.
#ifndef PACKALLOC_EXAMPLES_ENGINE_H_
#define PACKALLOC_EXAMPLES_ENGINE_H_

#include <cstddef>
#include <functional>
#include <utility>

#include "packalloc/buffer.h"

class Engine {
 public:
  // `kernel` doubles `nbytes` bytes in place at an address of `device`.
  using Kernel = std::function<absl::Status(packalloc::DeviceAddress at, std::size_t nbytes)>;
  Engine(packalloc::PackedAllocator device, Kernel kernel) : device_(std::move(device)), kernel_(std::move(kernel)) {}

  // Doubles every byte of `numbers`.
  absl::Status Double(absl::Span<std::byte> numbers) const {
    const packalloc::Buffer buffer(device_, numbers.size());
    if (absl::Status s = buffer.CopyIn(numbers); !s.ok()) return s;
    const absl::StatusOr<packalloc::DeviceAddress> at = buffer.addr();
    if (!at.ok()) return at.status();
    if (absl::Status s = kernel_(*at, numbers.size()); !s.ok()) return s;
    return buffer.CopyOut(numbers);
  }

 private:
  packalloc::PackedAllocator device_;
  Kernel kernel_;
};

#endif  // PACKALLOC_EXAMPLES_ENGINE_H_
