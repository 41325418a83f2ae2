// The shipped backends in memory keep the contract: raw, packed, eager and lazy.
#include "packalloc/testing/contract.h"

#include <doctest/doctest.h>

#include "packalloc/backends/cpu.h"
#include "packalloc/backends/mock.h"
#include "packalloc/backends/null.h"
#include "packalloc/layers/lru.h"
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
  RawAndPacked(
      {.absent = {Member::kOffset, Member::kTransfer, Member::kHostPtr, Member::kMemoryInfo, Member::kSynchronize}},
      skips);
}

// ---- CPU and NULL ----

TEST_CASE("CPU keeps the contract") {
  for (const CpuOptions& cpu : {CpuOptions{}, CpuOptions{.max_bytes = 256 << 20, .huge_pages = false}}) {
    ContractOptions options;
    options.skips = WithoutHooks();
    RunContract([cpu] { return CpuAllocator(cpu); }, options);
    RunContract([cpu] { return Pack(CpuAllocator(cpu)); }, options);
  }
}

TEST_CASE("NULL keeps the contract, as far as one can that moves no bytes") {
  ContractOptions options;
  options.skips = WithoutHooks();
  options.skips.merge(WithoutBytes());
  options.skips.merge(WithoutMember("copy_from_disk"));
  options.skips.merge(WithoutMember("host_ptr"));
  options.checks_ranges = false;
  RunContract([] { return NullAllocator(); }, options);
  RunContract([] { return Pack(NullAllocator()); }, options);
}

// ---- under the cache ----

// With the cache off (max_bytes = 0) what is used after free is memory that was given back, and fresh memory poisoned.
TEST_CASE("the cache keeps the contract, on and off") {
  for (const MockOptions& mock : {MockOptions{}, MockOptions{.host_accessible = false, .lazy = true}}) {
    for (const LruOptions& lru : {LruOptions{}, LruOptions{.max_bytes = 0}}) {
      const MockSubject subject(mock);
      RunContract([=] { return Lru(subject(), lru); }, subject.Options());
      RunContract([=] { return Lru(*Pack(subject()), lru); }, subject.Options());
    }
  }
}

TEST_CASE("the cache keeps the contract with size classes and a limit") {
  const LruOptions lru{.max_bytes = 1 << 20, .policy = EvictionPolicy::kGreedyDualSize, .max_waste = 0.25};
  const MockSubject subject({.address_is_pointer = false, .lazy = true});
  RunContract([=] { return Lru(*Pack(subject()), lru); }, subject.Options());
  ContractOptions raw = subject.Options();
  raw.checks_ranges = false;  // the handle knows the size class only
  RunContract([=] { return Lru(subject(), lru); }, raw);
}

TEST_CASE("the cache over CPU and NULL keeps the contract") {
  ContractOptions options;
  options.skips = WithoutHooks();
  RunContract([] { return Lru(*Pack(CpuAllocator())); }, options);
  options.skips.merge(WithoutBytes());
  options.skips.merge(WithoutMember("copy_from_disk"));
  options.skips.merge(WithoutMember("host_ptr"));
  RunContract([] { return Lru(*Pack(NullAllocator())); }, options);
}

}  // namespace
}  // namespace packalloc::testing
