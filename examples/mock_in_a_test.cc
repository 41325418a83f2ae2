// How to test an engine with the mock: which calls it makes, in which order, and what it does when one fails.
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "packalloc/backends/mock.h"
#include "packalloc/packed_allocator.h"

namespace {

// The engine under test: adds one to every byte of `data` on the device. `launch` starts its kernel.
absl::Status Increment(const packalloc::PackedAllocator& device, absl::Span<std::byte> data,
                       const std::function<absl::Status(const packalloc::AnyBuf&)>& launch) {
  absl::StatusOr<packalloc::AnyBuf> buf = device.alloc(data.size());
  if (!buf.ok()) return buf.status();
  absl::Status status = device.copyin(*buf, data);
  if (status.ok()) status = launch(*buf);
  if (status.ok()) status = device.copyout(data, *buf);
  status.Update(device.free(*buf, data.size()));
  return status;
}

bool Check(bool holds, const char* what) {
  if (!holds) std::printf("failed: %s\n", what);
  return holds;
}

}  // namespace

int main() {
  // Lazy: a copy or a kernel happens only when something waits for it.
  const packalloc::Allocator<packalloc::MockBuf> record = packalloc::MockAllocator({.lazy = true});
  const std::shared_ptr<packalloc::MockControl> mock = packalloc::Find<packalloc::MockControl>(record);
  const packalloc::PackedAllocator device = packalloc::Pack(record).value();

  const auto launch = [&](const packalloc::AnyBuf& buf) {
    const packalloc::MockBuf at = *buf.get<packalloc::MockBuf>();
    return mock->Launch("kernel increment", {at}, [mock, at] {
      const absl::Span<std::byte> bytes = mock->Bytes(at).value();
      for (std::byte& b : bytes) b = static_cast<std::byte>(static_cast<int>(b) + 1);
    });
  };

  std::vector<std::byte> data(4, std::byte{41});
  bool ok = Check(Increment(device, absl::MakeSpan(data), launch).ok(), "Increment works");
  ok &= Check(data == std::vector<std::byte>(4, std::byte{42}), "each byte is one more");
  ok &= Check(mock->log().Lines() == std::vector<std::string>{"MOCK: alloc 4 -> #1", "MOCK: copyin #1 4",
                                                              "kernel increment", "MOCK: copyout #1 4",
                                                              "MOCK: free #1 4"},
              "the calls come in this order");

  // The next copyout fails: the engine says so, and leaks nothing.
  mock->FailNth(packalloc::MockCall::kCopyout, 1, absl::UnavailableError("the device fell off the bus"));
  ok &= Check(absl::IsUnavailable(Increment(device, absl::MakeSpan(data), launch)), "the error comes out");
  ok &= Check(mock->live_bytes() == 0, "nothing is left on the device");
  ok &= Check(mock->misuses().empty(), "no foreign or double free");

  if (ok) std::printf("%s", "the engine makes the calls it should\n");
  return ok ? 0 : 1;
}
