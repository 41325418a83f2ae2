// A backend of one's own in use: packed, under the cache, and as a device name.
#include <cstddef>
#include <iostream>
#include <vector>

#include "examples/heap_backend.h"
#include "packalloc/buffer.h"
#include "packalloc/registry.h"

absl::Status Run() {
  // [snippet]
  packalloc::Backend heap;
  heap.name = "HEAP";
  heap.open = [](const packalloc::OpenRequest& request) -> absl::StatusOr<packalloc::PackedAllocator> {
    if (!request.target.empty()) return absl::InvalidArgumentError("there is one HEAP: it takes no target");
    return packalloc::Pack(HeapAllocator());
  };
  heap.devices = [] { return std::vector<packalloc::DeviceInfo>{{.name = "HEAP", .description = "the C heap"}}; };
  if (absl::Status s = packalloc::Register(heap); !s.ok()) return s;
  absl::StatusOr<packalloc::PackedAllocator> device = packalloc::Open("HEAP+lru");
  // [/snippet]
  if (!device.ok()) return device.status();
  const packalloc::Buffer buffer(*device, 4);
  const std::vector<std::byte> sent(4, std::byte{42});
  std::vector<std::byte> received(4);
  if (absl::Status s = buffer.CopyIn(sent); !s.ok()) return s;
  if (absl::Status s = buffer.CopyOut(absl::MakeSpan(received)); !s.ok()) return s;
  return sent == received ? absl::OkStatus() : absl::InternalError("the bytes came back changed");
}

int main() {
  const absl::Status status = Run();
  std::cerr << status << '\n';
  return status.ok() ? 0 : 1;
}
