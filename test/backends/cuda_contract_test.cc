// The contract suite on the CUDA backend over the strict fake driver, under its three schedules.
#include <doctest/doctest.h>

#include "packalloc/layers/lru.h"
#include "packalloc/packed_allocator.h"
#include "packalloc/testing/contract.h"
#include "test/backends/cuda_fake.h"

namespace cuda_test {
namespace {

using packalloc::PackedAllocator;
using packalloc::testing::ContractOptions;

ContractOptions Options() {
  ContractOptions options;
  options.large_bytes = (std::size_t{1} << 19) + 13;  // eight turns of SmallRing
  // The suite wraps an array on the stack, which CUDA does not know; cuda_test wraps what it does.
  for (const char* clause : {"spec.external_ptr", "spec.external_ptr_not_freed", "spec.external_ptr_not_cached"}) {
    options.skips[clause] = "external memory must be known to CUDA";
  }
  options.skips["alloc.exceptions_pass"] = "the driver throws nothing";
  options.live_blocks = [] {
    return fake_cuda_live(FAKE_CUDA_DEVICE_MEMORY) + fake_cuda_live(FAKE_CUDA_PINNED_MEMORY) +
           fake_cuda_live(FAKE_CUDA_MANAGED_MEMORY);
  };
  options.driver_calls = [] { return fake_cuda_calls("*"); };
  options.exhaust_in_next_alloc = [] {
    for (const char* call : {"cuMemAlloc_v2", "cuMemAllocAsync", "cuMemHostAlloc", "cuMemAllocManaged"}) {
      fake_cuda_fail(call, 0, CUDA_ERROR_OUT_OF_MEMORY);
    }
  };
  options.stop_exhausting = fake_cuda_clear_failures;
  return options;
}

// A small ring, so that every copy of the suite that is not tiny takes several turns.
CudaOptions SmallRing() {
  CudaOptions options;
  options.staging_slot_bytes = 65536;
  options.staging_slots = 3;
  return options;
}

absl::StatusOr<PackedAllocator> Packed(const CudaOptions& options) {
  absl::StatusOr<Allocator<CudaBuf>> record = CudaAllocator(options);
  if (!record.ok()) return record.status();
  return packalloc::Pack(*std::move(record));
}

absl::StatusOr<PackedAllocator> Cached(const CudaOptions& options) {
  absl::StatusOr<PackedAllocator> packed = Packed(options);
  return packed.ok() ? packalloc::Lru(*packed) : packed;
}

template <typename Factory>
void Run(int devices, Factory factory, const ContractOptions& contract = Options()) {
  UnderEachSchedule(devices, [&](fake_cuda_schedule) { packalloc::testing::RunContract(factory, contract); });
}

TEST_CASE("CUDA keeps the contract: raw") {
  Run(1, [] { return CudaAllocator(SmallRing()); });
}

TEST_CASE("CUDA keeps the contract: packed") {
  Run(1, [] { return Packed(SmallRing()); });
}

TEST_CASE("CUDA keeps the contract: under LRU, kept and off") {
  for (const char* on : {"1", "0"}) {
    INFO("LRU=", std::string(on));
    setenv("LRU", on, 1);
    Run(1, [] { return Cached(SmallRing()); });
    unsetenv("LRU");
  }
}

TEST_CASE("CUDA keeps the contract: the second of two devices, raw and under LRU") {
  CudaOptions options = SmallRing();
  options.device = 1;
  Run(2, [&] { return CudaAllocator(options); });
  Run(2, [&] { return Cached(options); });
}

TEST_CASE("CUDA keeps the contract: stream-ordered allocation") {
  CudaOptions options = SmallRing();
  options.allocation = packalloc::CudaAllocation::kStreamOrdered;
  Run(1, [&] { return CudaAllocator(options); });
}

TEST_CASE("CUDA keeps the contract: without pinned staging, whatever the driver does with pageable memory") {
  CudaOptions options;
  options.pinned_staging = false;
  ContractOptions contract = Options();
  contract.large_bytes = ContractOptions().large_bytes;  // more than one piece of the default size
  for (const fake_cuda_pageable pageable : {FAKE_CUDA_PAGEABLE_LATE, FAKE_CUDA_PAGEABLE_EARLY}) {
    Run(
        1,
        [&] {
          fake_cuda_set_pageable(pageable);
          return CudaAllocator(options);
        },
        contract);
  }
}

TEST_CASE("CUDA keeps the contract: on the legacy default stream") {
  CudaOptions options = SmallRing();
  options.stream = nullptr;
  Run(1, [&] { return CudaAllocator(options); });
}

}  // namespace
}  // namespace cuda_test
