// Failing: makes calls of any member fail, to see what an engine does about it: the nth call, every nth, or at random
// (the same calls each time for the same seed), with any status or an exception.
//
//   auto device = packalloc::Failing(*packalloc::Open("CPU"));
//   std::shared_ptr<packalloc::FailingControl> faults = packalloc::Find<packalloc::FailingControl>(*device);
//   faults->Add({.member = packalloc::Member::kCopyout, .nth = 2, .status = absl::UnavailableError("link down")});
//   faults->Add({.member = packalloc::Member::kAlloc, .probability = 0.01, .seed = 7});   // RESOURCE_EXHAUSTED
//   CHECK(engine.Run(*device).code() == absl::StatusCode::kUnavailable);
//   CHECK(faults->failures(packalloc::Member::kCopyout) == 1);
#ifndef PACKALLOC_LAYERS_FAILING_H_
#define PACKALLOC_LAYERS_FAILING_H_

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "packalloc/allocator.h"
#include "packalloc/packed_allocator.h"

namespace packalloc {

// Which calls fail, and how. Of nth, every and probability any may be set; a call fails that one of them hits.
struct FailureRule {
  std::optional<Member> member{};  // unset: all members, whose calls are counted together
  std::uint64_t nth = 0;           // that call, counted from 1 when the rule is added. 0: none
  std::uint64_t every = 0;         // every nth call. 0: none
  double probability = 0;          // of each call
  std::uint64_t seed = 0;          // of `probability`: which calls fail depends on it and the calls' numbers alone
  // What a failing call answers (for addr, which has no status: {0, 0}). OK is taken as the default.
  absl::Status status = absl::ResourceExhaustedError("injected by the Failing layer");
  std::exception_ptr exception{};  // thrown instead, where set
};

// What Find<FailingControl> finds. Thread-safe.
class FailingControl {
 public:
  virtual ~FailingControl() = default;
  // Of several rules that hit one call the first added decides.
  virtual void Add(FailureRule rule) = 0;
  virtual void ClearRules() = 0;
  // Calls of the member since the layer was made, and how many of them were made to fail.
  virtual std::uint64_t calls(Member member) const = 0;
  virtual std::uint64_t failures(Member member) const = 0;
};

// A record (or packed allocator) like `record` that fails as the rules say; a call that fails does not reach `record`.
// INVALID_ARGUMENT for a probability that is not from 0 to 1. FAILED_PRECONDITION for an empty packed allocator.
// Thread-safe.
absl::StatusOr<PackedAllocator> Failing(const PackedAllocator& packed, const std::vector<FailureRule>& rules = {});
template <typename Buf>
absl::StatusOr<Allocator<Buf>> Failing(Allocator<Buf> record, const std::vector<FailureRule>& rules = {});

// The layer itself, over boxed handles: for authors of layers.
absl::StatusOr<AnyRecord> FailingLayer(AnyRecord inner, const std::vector<FailureRule>& rules);

// ---- implementation ----

template <typename Buf>
absl::StatusOr<Allocator<Buf>> Failing(Allocator<Buf> record, const std::vector<FailureRule>& rules) {
  return ApplyLayer(std::move(record), [&](AnyRecord inner) { return FailingLayer(std::move(inner), rules); });
}

}  // namespace packalloc

#endif  // PACKALLOC_LAYERS_FAILING_H_
