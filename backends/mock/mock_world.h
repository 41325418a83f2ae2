// What the mocks of one transfer domain share: their blocks and the queue of operations that nothing demanded yet.
#ifndef PACKALLOC_BACKENDS_MOCK_MOCK_WORLD_H_
#define PACKALLOC_BACKENDS_MOCK_MOCK_WORLD_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "backends/mock/mock_memory.h"
#include "packalloc/allocator.h"
#include "packalloc/backends/mock.h"
#include "packalloc/buffer_spec.h"

namespace packalloc {

// Bytes in use of one memory domain.
struct MockPool {
  std::mutex mutex;
  std::size_t capacity = 0;
  std::size_t live = 0;
  std::uint32_t domain = NewDomain();
};

struct MockBlock {
  std::uint64_t id;
  std::size_t nbytes;
  BufferSpec spec;
  const void* device;  // the mock that allocated it
  std::uintptr_t address;
  bool host_accessible;
  MockMemory memory;
};
using MockBlockPtr = std::shared_ptr<MockBlock>;

// One operation that was issued: a write of `staged`, a copy from `source`, or a user's `work`.
struct MockOperation {
  const void* device = nullptr;  // the mock it was issued through
  MockBlockPtr dest{};
  std::size_t dest_offset = 0;
  MockBlockPtr source{};
  std::size_t source_offset = 0;
  std::size_t nbytes = 0;
  std::vector<std::byte> staged{};
  std::function<void()> work{};
  std::vector<MockBlockPtr> touches{};  // of `work`

  bool Touches(const MockBlock* block) const;
};

class MockWorld {
 public:
  using Lock = std::unique_lock<std::mutex>;
  using Predicate = std::function<bool(const MockOperation&)>;

  Lock Hold() { return Lock(mutex_); }

  // The members below are called with the lock held; those that take it release it around a user's work.

  // A made-up address of that alignment, never handed out before; RESOURCE_EXHAUSTED when none is left.
  absl::StatusOr<std::uintptr_t> NewAddress(std::size_t nbytes, std::size_t alignment);
  std::uint64_t NewBlockId() { return (std::uint64_t{domain_} << 32) | ++last_block_; }
  void Insert(MockBlockPtr block) { blocks_[block->id] = std::move(block); }
  void Erase(std::uint64_t id) { blocks_.erase(id); }
  // The live block, or null. `was_freed`: it was handed out here once.
  MockBlockPtr Find(std::uint64_t id) const;
  bool WasFreed(std::uint64_t id) const;
  const std::map<std::uint64_t, MockBlockPtr>& blocks() const { return blocks_; }

  void Issue(MockOperation operation) { queue_.push_back(std::move(operation)); }
  // Runs what `wanted` selects, with every earlier operation on the same blocks before it, in the order issued. The
  // first error is the answer; the rest runs all the same.
  absl::Status Demand(Lock& lock, const Predicate& wanted);
  std::size_t Pending(const void* device) const;

  std::uint32_t domain() const { return domain_; }

 private:
  std::vector<MockOperation> TakeDemanded(const Predicate& wanted);
  absl::Status Run(Lock& lock, MockOperation& operation);

  std::mutex mutex_;
  std::condition_variable idle_;
  bool running_ = false;
  std::thread::id runner_;
  const std::uint32_t domain_ = NewDomain();
  std::uint32_t last_block_ = 0;
  // Far outside what a process can map, so that a host access faults.
  std::uintptr_t next_address_ = std::uintptr_t{1} << 60;
  std::map<std::uint64_t, MockBlockPtr> blocks_;
  std::deque<MockOperation> queue_;
};

}  // namespace packalloc

#endif  // PACKALLOC_BACKENDS_MOCK_MOCK_WORLD_H_
