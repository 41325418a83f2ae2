// The mock as a subject of the contract suite, with every hook set.
#ifndef PACKALLOC_TEST_TESTING_MOCK_SUBJECT_H_
#define PACKALLOC_TEST_TESTING_MOCK_SUBJECT_H_

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "packalloc/backends/mock.h"
#include "packalloc/testing/check_contract.h"

namespace packalloc::testing {

// Makes mocks for the suite, and hooks that look at the last one made.
class MockSubject {
 public:
  explicit MockSubject(MockOptions options = {}) : state_(std::make_shared<State>()) {
    state_->options = std::move(options);
    // Extents are only carried through by the mock; the bytes lie here, found by the extent's offset.
    state_->options.read_extent = [state = std::weak_ptr<State>(state_)](absl::Span<std::byte> dest,
                                                                         const DiskExtent& src) -> absl::Status {
      const std::vector<std::byte>& file = state.lock()->files.at(src.offset);
      std::copy_n(file.begin(), dest.size(), dest.begin());
      return absl::OkStatus();
    };
  }

  Allocator<MockBuf> operator()() const {
    Allocator<MockBuf> record = MockAllocator(state_->options);
    state_->mock = Find<MockControl>(record);
    return record;
  }

  std::shared_ptr<MockControl> mock() const { return state_->mock; }

  ContractOptions Options() const {
    ContractOptions options;
    const std::shared_ptr<State> s = state_;
    options.live_blocks = [s] { return s->mock->live_blocks(); };
    options.driver_calls = [s] { return s->mock->log().entries().size(); };
    options.throw_in_next_alloc = [s] {
      s->mock->ThrowNth(Member::kAlloc, 1, std::make_exception_ptr(std::runtime_error("thrown by the device")));
    };
    options.exhaust_in_next_alloc = [s] {
      s->mock->FailAll(Member::kAlloc, absl::ResourceExhaustedError("the device is full"));
    };
    options.stop_exhausting = [s] { s->mock->ClearFailures(); };
    options.make_extent = [s](absl::Span<const std::byte> bytes) -> absl::StatusOr<DiskExtent> {
      s->files.emplace_back(bytes.begin(), bytes.end());
      return DiskExtent{nullptr, s->files.size() - 1, bytes.size()};
    };
    return options;
  }

 private:
  struct State {
    MockOptions options;
    std::shared_ptr<MockControl> mock;
    std::vector<std::vector<std::byte>> files;
  };
  std::shared_ptr<State> state_;
};

}  // namespace packalloc::testing

#endif  // PACKALLOC_TEST_TESTING_MOCK_SUBJECT_H_
