// The contract suite without a test framework: holds any backend, layer or mock to every clause of the contract in
// packalloc/allocator.h, and says which were broken. With doctest, packalloc/testing/contract.h is shorter. Link
// packalloc_testing beside packalloc.
//
//   packalloc::testing::ContractOptions options;
//   options.skips = packalloc::testing::WithoutHooks();
//   const packalloc::testing::ContractReport report =
//       packalloc::testing::CheckContract([] { return MyAllocator(); }, options);
//   EXPECT_TRUE(report.ok()) << packalloc::testing::ToString(report);
//
// docs/testing.md lists the clauses.
#ifndef PACKALLOC_TESTING_CHECK_CONTRACT_H_
#define PACKALLOC_TESTING_CHECK_CONTRACT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "packalloc/allocator.h"
#include "packalloc/packed_allocator.h"

namespace packalloc::testing {

// Which clause was broken, by its stable name ("copyin.consumes_source"), and how.
struct Violation {
  std::string clause;
  std::string what;
};

// Clause name -> why it does not apply.
using Skips = std::map<std::string, std::string>;

struct ContractOptions {
  // Clauses that are not run, each with its reason. A clause that cannot apply (the record has no `offset`) and is not
  // here is a violation, and so is a name here that is no clause.
  Skips skips;
  // Run only these, for debugging. Empty: all.
  std::vector<std::string> only;

  // Whether copies and views out of range are to be OUT_OF_RANGE. False for a raw record whose Buf does not know its
  // size (void*): the *.out_of_range and *.bounds clauses are then left out, without being listed. Packed allocators
  // check always.
  bool checks_ranges = true;

  // Largest copy, in bytes. Make it more than twice the largest staging chunk of the backend.
  std::size_t large_bytes = (std::size_t{4} << 20) + 13;

  // Hooks: what the suite cannot learn from the record. Clauses that need one which is not set must be listed in
  // `skips`; WithoutHooks lists them all. They look at the record that the factory made last.
  std::function<std::size_t()> live_blocks;     // device blocks not freed yet; external memory counts
  std::function<std::size_t()> driver_calls;    // calls that reached the device so far
  std::function<void()> throw_in_next_alloc;    // arms the device: a std::exception leaves its next alloc
  std::function<void()> exhaust_in_next_alloc;  // arms the device: all alloc is RESOURCE_EXHAUSTED ...
  std::function<void()> stop_exhausting;        // ... until this
  // For copy_from_disk: an extent that holds `bytes`. Unset: of a temporary file.
  std::function<absl::StatusOr<DiskExtent>(absl::Span<const std::byte> bytes)> make_extent;
};

// Skips for a backend that sets no hooks.
Skips WithoutHooks();
// Skips for records without the member: "offset", "transfer", "copy_from_disk", "host_ptr", "memory_info". Merge them:
//   options.skips = WithoutHooks();
//   options.skips.merge(WithoutMember("host_ptr"));
Skips WithoutMember(const std::string& member);
// Skips for a backend that moves no bytes: all clauses that look at them.
Skips WithoutBytes();

struct ContractReport {
  std::vector<Violation> violations;
  std::vector<std::string> passed;
  Skips skipped;
  bool ok() const { return violations.empty(); }
  // The clauses in `violations`, each once.
  bool Violates(const std::string& clause) const;
};
std::string ToString(const ContractReport& report);

// All clauses, in the order in which they run, with one sentence each.
std::vector<std::pair<std::string, std::string>> Clauses();

// What the suite runs on: a raw record with its handles boxed, or a packed allocator.
struct Subject {
  AnyRecord record;
  PackedAllocator packed;  // empty for a raw record
  // A further record, boxed from a copy of the typed one.
  std::function<AnyRecord()> copy;
};
using SubjectFactory = std::function<absl::StatusOr<Subject>()>;

absl::StatusOr<Subject> MakeSubject(absl::StatusOr<PackedAllocator> packed);
template <typename Buf>
absl::StatusOr<Subject> MakeSubject(absl::StatusOr<Allocator<Buf>> record) {
  if (!record.ok()) return record.status();
  const auto shared = std::make_shared<const Allocator<Buf>>(*std::move(record));
  return Subject{Erase<Buf>(shared), PackedAllocator(),
                 [shared] { return Erase<Buf>(std::make_shared<const Allocator<Buf>>(*shared)); }};
}
template <typename Buf>
absl::StatusOr<Subject> MakeSubject(Allocator<Buf> record) {
  return MakeSubject<Buf>(absl::StatusOr<Allocator<Buf>>(std::move(record)));
}
inline absl::StatusOr<Subject> MakeSubject(PackedAllocator packed) {
  return MakeSubject(absl::StatusOr<PackedAllocator>(std::move(packed)));
}

// Runs every clause on a fresh record from `factory`, a function returning Allocator<Buf>, PackedAllocator or a
// StatusOr of either. Exceptions of the record become violations. Not a word is printed. Takes some 50 MiB of device
// memory and, for a backend in memory, well under a second.
ContractReport CheckContractOf(const SubjectFactory& factory, const ContractOptions& options);
template <typename Factory>
ContractReport CheckContract(Factory factory, const ContractOptions& options = {}) {
  return CheckContractOf([factory = std::move(factory)] { return MakeSubject(factory()); }, options);
}

}  // namespace packalloc::testing

#endif  // PACKALLOC_TESTING_CHECK_CONTRACT_H_
