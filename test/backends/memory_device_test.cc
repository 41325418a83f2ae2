// What every device has to survive, on those that need no driver: CPU, MOCK, NULL, one that lies behind C, and an
// allocator of CANN.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "packalloc/backends/cpu.h"
#include "packalloc/backends/mock.h"
#include "packalloc/backends/null.h"
#include "packalloc/c_record.h"
#include "packalloc/interop/acl_import.h"
#include "packalloc/packed_allocator.h"
#include "test/backends/device_cases.h"
#include "test/backends/watched_device.h"

namespace packalloc::testing {
namespace {

TEST_CASE("CPU survives what every device has to") {
  RunDeviceCases(WatchedDevice([] { return *Pack(CpuAllocator()); }).Device());
}

TEST_CASE("NULL survives what every device has to") {
  DeviceUnderTest device = WatchedDevice([] { return *Pack(NullAllocator()); }).Device();
  device.moves_bytes = false;
  RunDeviceCases(device);
}

// Opens mocks that share nothing; at the end none of them may have been misused by a free or a copy.
class Mocks {
 public:
  explicit Mocks(MockOptions options) : options_(std::move(options)) { options_.log_calls = false; }
  Mocks(const Mocks&) = delete;
  Mocks& operator=(const Mocks&) = delete;
  ~Mocks() {
    for (const std::shared_ptr<MockControl>& control : controls_) {
      for (const std::string& misuse : control->misuses()) {
        // A cache that finds a second free asks where the buffer is.
        CHECK_MESSAGE(misuse.rfind("addr:", 0) == 0, misuse);
      }
    }
  }
  PackedAllocator Open() {
    Allocator<MockBuf> record = MockAllocator(options_);
    controls_.push_back(Find<MockControl>(record));
    return *Pack(std::move(record));
  }

 private:
  MockOptions options_;
  std::vector<std::shared_ptr<MockControl>> controls_;
};

TEST_CASE("MOCK survives what every device has to: eager, lazy, with opaque handles") {
  for (const MockOptions& options : {MockOptions{}, MockOptions{.address_is_pointer = false, .lazy = true}}) {
    Mocks mocks(options);
    RunDeviceCases(WatchedDevice([&mocks] { return mocks.Open(); }).Device());
  }
}

TEST_CASE("a device that lies behind C survives what every device has to") {
  Mocks mocks({.lazy = true});
  RunDeviceCases(WatchedDevice([&mocks] {
                   packalloc_record in_c = PACKALLOC_RECORD_INIT;
                   REQUIRE(ToC(mocks.Open(), &in_c).ok());
                   return *Pack(*FromC(in_c));
                 }).Device());
}

// By the four callbacks of CANN; a block is its own address.
PackedAllocator OfCannCallbacks() {
  const AclCallbacks heap{nullptr, [](void*, std::size_t nbytes) { return std::malloc(nbytes); },
                          [](void*, std::size_t, void*) -> void* { return nullptr; },
                          [](void*, void* block) { std::free(block); }, [](void* block) { return block; }};
  return *Pack(*FromAclCallbacks(heap, *Pack(CpuAllocator())));
}

TEST_CASE("an allocator of CANN's callbacks survives what every device has to") {
  RunDeviceCases(WatchedDevice(OfCannCallbacks).Device());
}

}  // namespace
}  // namespace packalloc::testing
