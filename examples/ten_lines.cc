// The ten lines of README.md: a device by name with the cache on it, a buffer, a view, and the cache's counters.
#include <cstddef>
#include <iostream>
#include <vector>

#include "packalloc/buffer.h"
#include "packalloc/layers/lru.h"
#include "packalloc/registry.h"

absl::Status Run() {
  // [snippet]
  absl::StatusOr<packalloc::PackedAllocator> device = packalloc::Open("CPU+lru:max_bytes=64MiB");
  if (!device.ok()) return device.status();
  packalloc::Buffer tensor(*device, 4096);  // allocated at first use; frees itself
  std::vector<std::byte> host(4096, std::byte{7});
  if (absl::Status s = tensor.CopyIn(host); !s.ok()) return s;
  absl::StatusOr<packalloc::Buffer> row = tensor.View(256, 1024);  // 256 bytes, from byte 1024 on
  if (!row.ok()) return row.status();
  absl::StatusOr<packalloc::DeviceAddress> argument = row->addr();  // what a kernel takes
  auto cache = packalloc::Find<packalloc::LruControl>(*device);     // through any stack of layers
  std::cout << device->name() << ": " << cache->stats().misses << " allocation\n";
  // [/snippet]
  if (cache->stats().misses != 1) return absl::InternalError("expected one allocation");
  return argument.status();
}

int main() {
  const absl::Status status = Run();
  std::cerr << status << '\n';
  return status.ok() ? 0 : 1;
}
