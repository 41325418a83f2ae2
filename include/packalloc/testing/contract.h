// The contract suite for doctest: holds any backend, layer or mock to every clause of the contract in
// packalloc/allocator.h. The test of a backend of your own (link packalloc_testing beside packalloc):
//
//   #include "packalloc/testing/contract.h"
//   TEST_CASE("my backend keeps the contract") {
//     packalloc::testing::ContractOptions options;
//     options.skips = packalloc::testing::WithoutHooks();
//     packalloc::testing::RunContract([] { return MyAllocator(); }, options);
//   }
//
// For another test framework there is packalloc/testing/check_contract.h.
#ifndef PACKALLOC_TESTING_CONTRACT_H_
#define PACKALLOC_TESTING_CONTRACT_H_

#include <doctest/doctest.h>

#include <string>
#include <utility>

#include "packalloc/testing/check_contract.h"

namespace packalloc::testing {

// CheckContract (which says what `factory` may be) as doctest checks: one for each clause that holds, a failed one for
// each violation. To be called inside a TEST_CASE.
template <typename Factory>
void RunContract(Factory factory, const ContractOptions& options = {}) {
  const ContractReport report = CheckContract(std::move(factory), options);
  for (const std::string& clause : report.passed) CHECK_MESSAGE(true, clause);
  for (const Violation& violation : report.violations) FAIL_CHECK(violation.clause << ": " << violation.what);
}

}  // namespace packalloc::testing

#endif  // PACKALLOC_TESTING_CONTRACT_H_
