// An engine's unit tests against the mock: the order of its copies and kernels, and what it does when a copy fails.
#include "packalloc/backends/mock.h"

#include <doctest/doctest.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "examples/engine.h"

// [snippet]
TEST_CASE("the engine uploads, launches once, downloads, and frees") {
  auto device = packalloc::MockAllocator();
  std::shared_ptr<packalloc::MockControl> mock = packalloc::Find<packalloc::MockControl>(device);
  Engine engine(*packalloc::Pack(device), [&](packalloc::DeviceAddress, std::size_t nbytes) {
    mock->log().Add("double " + std::to_string(nbytes));  // the kernel: here only that it was launched
    return absl::OkStatus();
  });
  std::vector<std::byte> numbers(64);
  using packalloc::Member;
  CHECK(engine.Double(absl::MakeSpan(numbers)).ok());
  CHECK(mock->log().Lines({Member::kCopyin, packalloc::kUserEntry, Member::kCopyout, Member::kFree}) ==
        std::vector<std::string>{"MOCK: copyin #1 64", "double 64", "MOCK: copyout #1 64", "MOCK: free #1 64"});
}

TEST_CASE("a failing copy is reported and leaks nothing") {
  auto device = packalloc::MockAllocator();
  std::shared_ptr<packalloc::MockControl> mock = packalloc::Find<packalloc::MockControl>(device);
  mock->FailNth(packalloc::Member::kCopyout, 1, absl::UnavailableError("the device fell off"));
  Engine engine(*packalloc::Pack(device), [](packalloc::DeviceAddress, std::size_t) { return absl::OkStatus(); });
  std::vector<std::byte> numbers(64);
  CHECK(engine.Double(absl::MakeSpan(numbers)).code() == absl::StatusCode::kUnavailable);
  CHECK(mock->live_bytes() == 0);
}
// [/snippet]
