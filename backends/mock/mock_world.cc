#include "backends/mock/mock_world.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "lib/checked_math.h"

namespace packalloc {

bool MockOperation::Touches(const MockBlock* block) const {
  return dest.get() == block || source.get() == block ||
         std::any_of(touches.begin(), touches.end(), [block](const MockBlockPtr& t) { return t.get() == block; });
}

absl::StatusOr<std::uintptr_t> MockWorld::NewAddress(std::size_t nbytes, std::size_t alignment) {
  // A gap behind each block, so that no address is another's end.
  constexpr std::size_t kGap = 64;
  const std::optional<std::uintptr_t> start = RoundUp<std::uintptr_t>(next_address_, alignment);
  const std::optional<std::uintptr_t> end = start ? CheckedAdd<std::uintptr_t>(*start, nbytes) : std::nullopt;
  const std::optional<std::uintptr_t> next = end ? CheckedAdd<std::uintptr_t>(*end, kGap) : std::nullopt;
  if (!next) {
    return absl::ResourceExhaustedError(absl::StrCat("the mock has no addresses left for ", nbytes, " bytes"));
  }
  next_address_ = *next;
  return *start;
}

MockBlockPtr MockWorld::Find(std::uint64_t id) const {
  const auto found = blocks_.find(id);
  return found == blocks_.end() ? nullptr : found->second;
}

bool MockWorld::WasFreed(std::uint64_t id) const {
  const auto serial = static_cast<std::uint32_t>(id);
  return id >> 32 == domain_ && serial != 0 && serial <= last_block_ && blocks_.count(id) == 0;
}

std::size_t MockWorld::Pending(const void* device) const {
  return static_cast<std::size_t>(
      std::count_if(queue_.begin(), queue_.end(), [device](const MockOperation& o) { return o.device == device; }));
}

std::vector<MockOperation> MockWorld::TakeDemanded(const Predicate& wanted) {
  std::vector<const MockBlock*> blocks;  // of demanded operations: what was issued on them earlier is demanded too
  std::vector<bool> take(queue_.size());
  for (std::size_t i = queue_.size(); i-- > 0;) {
    const MockOperation& operation = queue_[i];
    take[i] = wanted(operation) || std::any_of(blocks.begin(), blocks.end(),
                                               [&](const MockBlock* block) { return operation.Touches(block); });
    if (!take[i]) continue;
    blocks.push_back(operation.dest.get());
    blocks.push_back(operation.source.get());
    for (const MockBlockPtr& touched : operation.touches) blocks.push_back(touched.get());
    std::sort(blocks.begin(), blocks.end());
    blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
    if (blocks.front() == nullptr) blocks.erase(blocks.begin());
  }
  std::vector<MockOperation> taken;
  std::deque<MockOperation> rest;
  for (std::size_t i = 0; i < queue_.size(); ++i) {
    if (take[i]) {
      taken.push_back(std::move(queue_[i]));
    } else {
      rest.push_back(std::move(queue_[i]));
    }
  }
  queue_ = std::move(rest);
  return taken;
}

absl::Status MockWorld::Run(Lock& lock, MockOperation& operation) {
  if (operation.work) {
    lock.unlock();
    struct Relock {
      Lock& lock;
      ~Relock() { lock.lock(); }
    } relock{lock};
    operation.work();
    return absl::OkStatus();
  }
  absl::StatusOr<std::byte*> to = operation.dest->memory.Touch(operation.dest_offset, operation.nbytes);
  if (!to.ok()) return to.status();
  if (operation.source == nullptr) {
    std::memcpy(*to, operation.staged.data(), operation.nbytes);
    return absl::OkStatus();
  }
  absl::StatusOr<std::byte*> from = operation.source->memory.Touch(operation.source_offset, operation.nbytes);
  if (!from.ok()) return from.status();
  std::memmove(*to, *from, operation.nbytes);
  return absl::OkStatus();
}

absl::Status MockWorld::Demand(Lock& lock, const Predicate& wanted) {
  // One thread runs operations at a time, for their order; a user's work that comes back here is that thread itself.
  const std::thread::id self = std::this_thread::get_id();
  const bool nested = running_ && runner_ == self;
  if (!nested) idle_.wait(lock, [this] { return !running_; });
  std::vector<MockOperation> demanded = TakeDemanded(wanted);
  if (demanded.empty()) return absl::OkStatus();
  running_ = true;
  runner_ = self;
  std::size_t done = 0;
  // Where a user's work throws, what was to come after it waits for the next demand.
  struct Finish {
    MockWorld& world;
    bool nested;
    std::vector<MockOperation>& demanded;
    std::size_t& done;
    ~Finish() {
      for (std::size_t i = demanded.size(); i > done; --i) world.queue_.push_front(std::move(demanded[i - 1]));
      if (nested) return;
      world.running_ = false;
      world.idle_.notify_all();
    }
  } finish{*this, nested, demanded, done};
  absl::Status first;
  while (done < demanded.size()) first.Update(Run(lock, demanded[done++]));
  return first;
}

}  // namespace packalloc
