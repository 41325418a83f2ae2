// Backends with one fault each, made from the mock. Every clause of the contract suite is to reject its own.
#ifndef PACKALLOC_TEST_TESTING_BROKEN_BACKENDS_H_
#define PACKALLOC_TEST_TESTING_BROKEN_BACKENDS_H_

#include <vector>

#include "packalloc/allocator.h"
#include "packalloc/backends/mock.h"

namespace packalloc::testing {

struct BrokenBackend {
  const char* clause;  // that has to reject it
  const char* fault;
  void (*break_it)(Allocator<MockBuf>& record);
  MockOptions mock{};   // what it is made from
  bool packed = false;  // whether the clause is one of a packed allocator
};

const std::vector<BrokenBackend>& BrokenAllocs();
const std::vector<BrokenBackend>& BrokenCopies();
const std::vector<BrokenBackend>& BrokenViews();
const std::vector<BrokenBackend>& BrokenSpecs();

}  // namespace packalloc::testing

#endif  // PACKALLOC_TEST_TESTING_BROKEN_BACKENDS_H_
