// The contract suite on a backend of one's own.
#include "packalloc/testing/contract.h"

#include "examples/heap_backend.h"

// [snippet]
TEST_CASE("my backend keeps the contract") {
  packalloc::testing::ContractOptions options;
  options.skips = packalloc::testing::WithoutHooks();  // clauses that need a hand inside the device
  for (const char* member : {"transfer", "copy_from_disk", "host_ptr", "memory_info"}) {
    options.skips.merge(packalloc::testing::WithoutMember(member));  // left empty
  }
  packalloc::testing::RunContract([] { return packalloc::Pack(HeapAllocator()); }, options);
}
// [/snippet]
