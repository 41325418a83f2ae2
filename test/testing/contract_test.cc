// The shipped backends in memory keep the contract: raw, packed, eager and lazy.
#include "packalloc/testing/contract.h"

#include <doctest/doctest.h>

#include "packalloc/backends/mock.h"
#include "packalloc/packed_allocator.h"
#include "test/testing/mock_subject.h"

namespace packalloc::testing {
namespace {

void RawAndPacked(const MockOptions& mock, const Skips& skips = {}) {
  const MockSubject subject(mock);
  ContractOptions options = subject.Options();
  options.skips = skips;
  RunContract(subject, options);
  RunContract([subject] { return Pack(subject()); }, options);
}

TEST_CASE("MOCK keeps the contract") { RawAndPacked({}); }

TEST_CASE("MOCK keeps the contract when lazy") { RawAndPacked({.lazy = true}); }

TEST_CASE("MOCK keeps the contract with opaque handles") { RawAndPacked({.address_is_pointer = false, .lazy = true}); }

TEST_CASE("MOCK keeps the contract as a GPU, whose memory the CPU does not reach") {
  RawAndPacked({.host_accessible = false, .lazy = true}, {});
}

TEST_CASE("MOCK keeps the contract with a capacity and a limit on one allocation") {
  RawAndPacked({.capacity_bytes = 64 << 20, .max_alloc_bytes = 16 << 20});
}

TEST_CASE("MOCK keeps the contract without the optional members") {
  Skips skips;
  for (const char* member : {"offset", "transfer", "host_ptr", "memory_info"}) skips.merge(WithoutMember(member));
  RawAndPacked({.absent = {MockCall::kOffset, MockCall::kTransfer, MockCall::kHostPtr, MockCall::kMemoryInfo,
                           MockCall::kSynchronize}},
               skips);
}

}  // namespace
}  // namespace packalloc::testing
