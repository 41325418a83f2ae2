// The contract suite is itself tested: each clause rejects the backends that break it, and nothing else is broken.
#include "test/testing/broken_backends.h"

#include <doctest/doctest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "packalloc/packed_allocator.h"
#include "packalloc/testing/check_contract.h"
#include "test/testing/mock_subject.h"

namespace packalloc::testing {
namespace {

std::vector<BrokenBackend> All() {
  std::vector<BrokenBackend> all;
  for (const auto* part : {&BrokenAllocs(), &BrokenCopies(), &BrokenViews(), &BrokenSpecs()}) {
    all.insert(all.end(), part->begin(), part->end());
  }
  return all;
}

ContractReport Check(const BrokenBackend& broken, bool break_it) {
  const MockSubject subject(broken.mock);
  const auto make = [&] {
    Allocator<MockBuf> record = subject();
    if (break_it) broken.break_it(record);
    return record;
  };
  ContractOptions options = subject.Options();
  options.only = {broken.clause};
  if (broken.packed) return CheckContract([&] { return Pack(make()); }, options);
  return CheckContract(make, options);
}

TEST_CASE("every broken backend is rejected by its own clause") {
  for (const BrokenBackend& broken : All()) {
    INFO(std::string(broken.clause) << ": " << std::string(broken.fault));
    const ContractReport report = Check(broken, true);
    CHECK(report.Violates(broken.clause));
    CHECK(Check(broken, false).ok());
  }
}

TEST_CASE("every clause rejects a broken backend") {
  // What PackedAllocator checks before any record is called cannot be broken from outside.
  std::set<std::string> untested = {"packed.free_wrong_size", "packed.foreign_buffer", "packed.empty_handle",
                                    "packed.view_is_not_freed"};
  for (const BrokenBackend& broken : All()) untested.insert(broken.clause);
  for (const auto& clause : Clauses()) {
    const std::string& name = clause.first;
    CHECK_MESSAGE(untested.count(name) == 1, name);
  }
}

TEST_CASE("a factory that gives the same allocator again is found") {
  const MockSubject subject;
  const absl::StatusOr<PackedAllocator> one = Pack(subject());
  CHECK(CheckContract([&] { return one; }, subject.Options()).Violates("packed.foreign_buffer"));
}

TEST_CASE("a factory that fails or throws is a violation") {
  const auto fails = [] { return absl::StatusOr<PackedAllocator>(absl::UnavailableError("no device")); };
  CHECK_FALSE(CheckContract(fails).ok());
  const auto throws = []() -> PackedAllocator { throw std::runtime_error("no device"); };
  CHECK_FALSE(CheckContract(throws).ok());
  CHECK_FALSE(CheckContract([] { return PackedAllocator(); }).ok());
}

TEST_CASE("what a record throws is a violation of the clause at work") {
  const MockSubject subject;
  const auto throws = [&] {
    Allocator<MockBuf> record = subject();
    record.copyout = [](absl::Span<std::byte>, const MockBuf&) -> absl::Status { throw 42; };
    return record;
  };
  ContractOptions options = subject.Options();
  options.only = {"copyout.exact", "threads.any_member", "addr.stable"};
  const ContractReport report = CheckContract(throws, options);
  CHECK(report.Violates("copyout.exact"));
  CHECK(report.Violates("threads.any_member"));
  CHECK_FALSE(report.Violates("addr.stable"));
}

TEST_CASE("a clause that cannot apply has to be listed") {
  const MockSubject subject({.absent = {Member::kOffset}});
  ContractOptions options = subject.Options();
  CHECK(CheckContract(subject, options).Violates("offset.reads_base"));
  options.skips = WithoutMember("offset");
  const ContractReport report = CheckContract(subject, options);
  CHECK(report.ok());
  CHECK(report.skipped.count("offset.reads_base") == 1);
  CHECK(report.skipped.at("offset.reads_base") == "the record has no offset");
}

TEST_CASE("hooks that are not set have to be listed") {
  const MockSubject subject;
  ContractOptions options;
  CHECK(CheckContract(subject, options).Violates("free.returns_memory"));
  options.skips = WithoutHooks();
  options.make_extent = subject.Options().make_extent;  // a mock's extents are not of files
  CHECK(CheckContract(subject, options).ok());
}

TEST_CASE("a skip that is no clause is a violation") {
  const MockSubject subject;
  ContractOptions options = subject.Options();
  options.skips = {{"offset.read_base", "a slip of the pen"}};
  options.only = {"record.traits"};
  CHECK(CheckContract(subject, options).Violates("offset.read_base"));
}

TEST_CASE("ranges are left to packed allocators where a handle does not know its size") {
  const MockSubject subject;
  const auto unchecked = [&] {
    Allocator<MockBuf> record = subject();
    record.offset = [](const MockBuf& buf, std::size_t n, std::size_t at) -> absl::StatusOr<MockBuf> {
      return MockBuf{buf.block, buf.byte_offset + at, n};
    };
    return record;
  };
  ContractOptions options = subject.Options();
  CHECK_FALSE(CheckContract(unchecked, options).ok());
  options.checks_ranges = false;
  CHECK(CheckContract(unchecked, options).ok());
  CHECK(CheckContract([&] { return Pack(unchecked()); }, options).ok());
}

}  // namespace
}  // namespace packalloc::testing
