#include "lib/layers/reclaim.h"

#include <map>
#include <new>
#include <utility>

namespace packalloc {
namespace {

// Releases that this thread is inside of, in any group.
constinit thread_local std::uint64_t own_releases = 0;

// The groups by domain.
struct Groups final : ForkGuarded {
  std::mutex mutex;
  std::map<std::uint32_t, std::weak_ptr<ReclaimGroup>> by_domain;
  Groups() { BeginForkGuard(this, ForkRank::kReclaim); }
  ~Groups() override { EndForkGuard(this); }
  void BeforeFork() override { mutex.lock(); }
  void AfterFork(bool) override { mutex.unlock(); }
};
}  // namespace

std::shared_ptr<ReclaimGroup> ReclaimGroup::Of(std::uint32_t memory_domain) {
  auto fresh = std::make_shared<ReclaimGroup>();  // before the lock: groups wait for a fork, and a fork for the lock
  if (memory_domain == 0) return fresh;
  Groups& groups = OneOfTheProcess<Groups>();
  std::lock_guard lock(groups.mutex);
  std::erase_if(groups.by_domain, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<ReclaimGroup>& known = groups.by_domain[memory_domain];
  if (std::shared_ptr<ReclaimGroup> group = known.lock()) return group;
  known = fresh;
  return fresh;
}

ReclaimGroup::ReclaimGroup() { BeginForkGuard(this, ForkRank::kReclaim); }
ReclaimGroup::~ReclaimGroup() { EndForkGuard(this); }

void ReclaimGroup::Join(std::weak_ptr<Member> member) {
  std::lock_guard lock(mutex_);
  std::erase_if(members_, [](const std::weak_ptr<Member>& m) { return m.expired(); });
  members_.push_back(std::move(member));
}

std::size_t ReclaimGroup::Ask(std::size_t nbytes, const Member* asking) {
  std::vector<std::weak_ptr<Member>> members;
  {
    std::lock_guard lock(mutex_);
    members = members_;
  }
  std::size_t released = 0;
  for (const std::weak_ptr<Member>& weak : members) {
    if (released >= nbytes) break;
    const std::shared_ptr<Member> member = weak.lock();
    if (member && member.get() != asking) released += member->Reclaim(nbytes - released);
  }
  return released;
}

void ReclaimGroup::BeginRelease() {
  std::lock_guard lock(mutex_);
  ++under_way_;
  ++own_releases;
}

void ReclaimGroup::EndRelease() {
  --own_releases;
  std::lock_guard lock(mutex_);
  if (under_way_ > 0) --under_way_;  // 0: begun before the fork that made this process
  ++completed_;
  released_.notify_all();
}

std::uint64_t ReclaimGroup::completed() const {
  std::lock_guard lock(mutex_);
  return completed_;
}

bool ReclaimGroup::WaitForRelease(std::uint64_t seen) {
  std::unique_lock lock(mutex_);
  if (own_releases == 0) released_.wait(lock, [&] { return completed_ != seen || under_way_ == 0; });
  return completed_ != seen;
}

void ReclaimGroup::BeforeFork() { mutex_.lock(); }

void ReclaimGroup::AfterFork(bool in_child) {
  if (in_child) {
    under_way_ = 0;                              // those who were at it do not exist here
    ::new (&released_) std::condition_variable;  // nor do those who waited
  }
  mutex_.unlock();
}

}  // namespace packalloc
