// The contract suite on OpenCL: raw, packed, under the cache, and under a cache that keeps nothing.
#include "packalloc/testing/contract.h"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdlib>
#include <string>
#include <utility>

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
  options.skips.merge(testing::WithoutMember("memory_info"));
  if (std::getenv("OCLGRIND_LOG") != nullptr) {
    for (const auto& clause : testing::Clauses()) {
      if (clause.first.rfind("threads.", 0) == 0)
        options.skips[clause.first] = "Oclgrind is not safe to use from threads";
    }
  }
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

template <typename Open>
absl::StatusOr<PackedAllocator> PackedOf(const Open& open) {
  absl::StatusOr<Allocator<OpenClBuf>> record = open();
  if (!record.ok()) return record.status();
  return Pack(*std::move(record));
}

TEST_CASE("OpenCL keeps the contract, packed") {
  OnEachDevice([](const auto& open) { testing::RunContract([&open] { return PackedOf(open); }, Options()); });
}

TEST_CASE("OpenCL keeps the contract under the cache, and under one that keeps nothing") {
  for (const std::size_t max_bytes : {LruOptions().max_bytes, std::size_t{0}}) {
    CAPTURE(max_bytes);
    OnEachDevice([max_bytes](const auto& open) {
      testing::RunContract(
          [&open, max_bytes]() -> absl::StatusOr<PackedAllocator> {
            absl::StatusOr<PackedAllocator> packed = PackedOf(open);
            if (!packed.ok()) return packed.status();
            return Lru(*packed, {.max_bytes = max_bytes});
          },
          Options());
    });
  }
}

TEST_CASE("OpenCL keeps the contract on a caller's out-of-order queue") {
  if (!testing::HasOutOfOrderQueues()) return;
  const testing::OwnQueue own(CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
  testing::RunContract([&own] { return OpenClAllocator({.queue = own.queue()}); }, Options());
}

}  // namespace
}  // namespace packalloc
