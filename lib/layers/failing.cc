#include "packalloc/layers/failing.h"

#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/fork_guard.h"
#include "lib/layers/stack_rules.h"

namespace packalloc {
namespace {

// A number from 0 up to 1 that depends on the two alone (SplitMix64).
double Chance(std::uint64_t seed, std::uint64_t call) {
  std::uint64_t z = seed + call * 0x9E3779B97F4A7C15U;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

class Injector : public FailingControl, private ForkGuarded {
 public:
  Injector() { BeginForkGuard(this, ForkRank::kCache); }
  ~Injector() override { EndForkGuard(this); }

  void Add(FailureRule rule) override {
    if (rule.status.ok()) rule.status = FailureRule{}.status;
    const std::lock_guard lock(mutex_);
    rules_.push_back({std::move(rule), 0});
  }

  void ClearRules() override {
    const std::lock_guard lock(mutex_);
    rules_.clear();
  }

  std::uint64_t calls(Member member) const override { return Of(calls_, member); }
  std::uint64_t failures(Member member) const override { return Of(failures_, member); }

  // The status of a call that is to fail, or OK. Throws what a rule says.
  absl::Status Next(Member member) {
    absl::Status status;
    std::exception_ptr exception;
    {
      const std::lock_guard lock(mutex_);
      ++calls_[static_cast<std::size_t>(member)];
      for (Counted& counted : rules_) {
        const FailureRule& rule = counted.rule;
        if (rule.member.has_value() && *rule.member != member) continue;
        const std::uint64_t call = ++counted.calls;
        const bool hit = call == rule.nth || (rule.every != 0 && call % rule.every == 0) ||
                         (rule.probability > 0 && Chance(rule.seed, call) < rule.probability);
        if (!hit || !status.ok()) continue;
        status = rule.status;
        exception = rule.exception;
        ++failures_[static_cast<std::size_t>(member)];
      }
    }
    if (exception) std::rethrow_exception(exception);
    return status;
  }

 private:
  struct Counted {
    FailureRule rule;
    std::uint64_t calls;
  };
  using PerMember = std::array<std::uint64_t, kMembers>;

  std::uint64_t Of(const PerMember& numbers, Member member) const {
    const std::lock_guard lock(mutex_);
    return numbers.at(static_cast<std::size_t>(member));
  }

  void BeforeFork() override { mutex_.lock(); }
  void AfterFork(bool) override { mutex_.unlock(); }

  mutable std::mutex mutex_;
  std::vector<Counted> rules_;
  PerMember calls_{};
  PerMember failures_{};
};

// Puts the injector before a member that is there.
template <typename R, typename... Args>
void Wrap(std::function<R(Args...)>& function, Member member, const std::shared_ptr<Injector>& injector) {
  if (!function) return;
  function = [inner = std::move(function), member, injector](Args... args) -> R {
    if (absl::Status status = injector->Next(member); !status.ok()) {
      if constexpr (std::is_same_v<R, DeviceAddress>) {
        return DeviceAddress{};
      } else {
        return status;
      }
    }
    return inner(std::forward<Args>(args)...);
  };
}

}  // namespace

absl::StatusOr<AnyRecord> FailingLayer(AnyRecord inner, const std::vector<FailureRule>& rules) {
  auto injector = std::make_shared<Injector>();
  for (const FailureRule& rule : rules) {
    if (!(rule.probability >= 0 && rule.probability <= 1)) {
      return absl::InvalidArgumentError(
          absl::StrCat("Failing: probability is ", rule.probability, "; it is from 0 to 1"));
    }
    injector->Add(rule);
  }
  Wrap(inner.alloc, Member::kAlloc, injector);
  Wrap(inner.free, Member::kFree, injector);
  Wrap(inner.copyin, Member::kCopyin, injector);
  Wrap(inner.copyout, Member::kCopyout, injector);
  Wrap(inner.addr, Member::kAddr, injector);
  Wrap(inner.offset, Member::kOffset, injector);
  Wrap(inner.transfer, Member::kTransfer, injector);
  Wrap(inner.copy_from_disk, Member::kCopyFromDisk, injector);
  Wrap(inner.host_ptr, Member::kHostPtr, injector);
  Wrap(inner.memory_info, Member::kMemoryInfo, injector);
  Wrap(inner.synchronize, Member::kSynchronize, injector);
  inner.controls.Add<FailingControl>(std::move(injector));
  MarkLayer(inner, "failing");
  return inner;
}

absl::StatusOr<PackedAllocator> Failing(const PackedAllocator& packed, const std::vector<FailureRule>& rules) {
  return ApplyLayer(packed, [&](AnyRecord inner) { return FailingLayer(std::move(inner), rules); });
}

}  // namespace packalloc
