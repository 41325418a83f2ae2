// An engine under the layers that find mistakes and make faults.
#include <doctest/doctest.h>

#include <memory>
#include <vector>

#include "examples/engine.h"
#include "packalloc/backends/cpu.h"
#include "packalloc/layers/checked.h"
#include "packalloc/layers/failing.h"
#include "packalloc/layers/lru.h"

namespace {

const Engine::Kernel kNoKernel = [](packalloc::DeviceAddress, std::size_t) { return absl::OkStatus(); };

// [snippet failing]
TEST_CASE("whichever call fails, the engine says so and leaks nothing") {
  const packalloc::PackedAllocator device =
      *packalloc::Checked(*packalloc::Failing(*packalloc::Pack(packalloc::CpuAllocator())));
  const auto faults = packalloc::Find<packalloc::FailingControl>(device);
  const auto checked = packalloc::Find<packalloc::CheckedControl>(device);
  const Engine engine(device, kNoKernel);
  std::vector<std::byte> numbers(64);
  for (std::uint64_t nth = 1;; ++nth) {
    faults->Add({.member = packalloc::Member::kCopyout, .nth = nth, .status = absl::UnavailableError("link down")});
    const std::uint64_t before = faults->failures(packalloc::Member::kCopyout);
    const absl::Status status = engine.Double(absl::MakeSpan(numbers));
    faults->ClearRules();
    CHECK(checked->leaks().empty());
    if (faults->failures(packalloc::Member::kCopyout) == before) break;  // it makes fewer calls than that
    if (nth == 1) CHECK(status.code() == absl::StatusCode::kUnavailable);
  }
}
// [/snippet failing]

// [snippet checked]
TEST_CASE("a kernel that writes one byte too many is found") {
  const packalloc::PackedAllocator device =
      *packalloc::Checked(*packalloc::Lru(*packalloc::Pack(packalloc::CpuAllocator())));
  absl::StatusOr<packalloc::AnyBuf> buf = device.alloc(100);
  (*device.host_ptr(*buf))[100] = std::byte{1};
  absl::Status freed = device.free(*buf, 100);
  CHECK(freed.code() == absl::StatusCode::kDataLoss);  // "CPU: byte 1 behind a buffer of 100 bytes was overwritten;
                                                       //  it was allocated by ..."
}
// [/snippet checked]

}  // namespace
