// A lazy mock finds the synchronize that an engine forgot, and runs a test's own kernels in their place among the
// copies.
#include <doctest/doctest.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "packalloc/backends/mock.h"

// [snippet]
TEST_CASE("the result is there after synchronize, and not before") {
  auto device = packalloc::MockAllocator({.lazy = true});
  std::shared_ptr<packalloc::MockControl> mock = packalloc::Find<packalloc::MockControl>(device);
  const packalloc::MockBuf buf = *device.alloc(4, {});
  const std::vector<std::byte> ones(4, std::byte{1});
  CHECK(device.copyin(buf, ones).ok());
  const auto twice = [&] {  // the kernel of this test
    const absl::Span<std::byte> bytes = *mock->Bytes(buf);
    for (std::byte& b : bytes) b <<= 1;
  };
  CHECK(mock->Launch("double", {buf}, twice).ok());

  const std::byte* result = *device.host_ptr(buf);
  CHECK(result[0] == std::byte{0xCB});  // fresh memory is poisoned: whoever reads now has forgotten to wait
  CHECK(mock->pending() == 2);
  CHECK(device.synchronize().ok());
  CHECK(result[0] == std::byte{2});
  CHECK(device.free(buf, 4, {}).ok());
}

TEST_CASE("one log shows the order between two devices") {
  const auto log = std::make_shared<packalloc::MockLog>();
  auto first = packalloc::MockAllocator({.name = "GPU:0", .log = log});
  auto second = packalloc::MockAllocator(
      {.name = "GPU:1", .log = log, .transfers_with = packalloc::Find<packalloc::MockControl>(first)});
  const packalloc::MockBuf from = *first.alloc(64, {});
  const packalloc::MockBuf to = *second.alloc(64, {});
  CHECK(first.synchronize().ok());
  CHECK(second.transfer(to, from, 64).ok());  // one transfer domain: each reaches the other's buffers
  CHECK(log->Lines() == std::vector<std::string>{"GPU:0: alloc 64 -> #1", "GPU:1: alloc 64 -> #2", "GPU:0: synchronize",
                                                 "GPU:1: transfer #2 <- #1 64"});
}
// [/snippet]
