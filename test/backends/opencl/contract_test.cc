// The contract suite on OpenCL: raw, packed, under the cache, and under a cache that keeps nothing.
#include "packalloc/testing/contract.h"

#include <doctest/doctest.h>

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "packalloc/allocator.h"
#include "packalloc/backends/opencl.h"
#include "packalloc/layers/lru.h"
#include "packalloc/packed_allocator.h"
#include "test/backends/opencl/support.h"

namespace packalloc {
namespace {

testing::ContractOptions Options() {
  testing::ContractOptions options;
  options.skips = testing::WithoutHooks();
  options.skips.merge(testing::WithoutMember("copy_from_disk"));
  options.skips.merge(testing::WithoutMember("memory_info"));
  return options;
}

// Every device of this machine.
template <typename F>
void OnEachDevice(F&& run) {
  for (int i = 0;; ++i) {
    const std::string device = std::to_string(i);
    if (i > 0 && !OpenClAllocator({.device = device}).ok()) return;
    CAPTURE(device);
    run([device] { return OpenClAllocator({.device = device, .max_copy_bytes = std::size_t{1} << 20}); });
  }
}

TEST_CASE("OpenCL keeps the contract, raw") {
  OnEachDevice([](const auto& open) { testing::RunContract(open, Options()); });
}

TEST_CASE("OpenCL keeps the contract, packed") {
  OnEachDevice([](const auto& open) {
    testing::RunContract(
        [&open]() -> absl::StatusOr<PackedAllocator> {
          absl::StatusOr<Allocator<OpenClBuf>> record = open();
          if (!record.ok()) return record.status();
          return Pack(*std::move(record));
        },
        Options());
  });
}

TEST_CASE("OpenCL keeps the contract on a caller's out-of-order queue") {
  const testing::OwnQueue own(CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
  testing::RunContract([&own] { return OpenClAllocator({.queue = own.queue()}); }, Options());
}

}  // namespace
}  // namespace packalloc
