// A device of the cases in device_cases.h, of any allocator: what its record is called for counts as what a driver
// sees, and a capacity and failures lie before it. Its memory is a device's own: no host_ptr, no transfer with others.
#ifndef PACKALLOC_TEST_BACKENDS_WATCHED_DEVICE_H_
#define PACKALLOC_TEST_BACKENDS_WATCHED_DEVICE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "packalloc/allocator.h"
#include "packalloc/packed_allocator.h"
#include "test/backends/device_cases.h"

namespace packalloc::testing {

class WatchedDevice {
 public:
  explicit WatchedDevice(std::function<PackedAllocator()> open) : open_(std::move(open)) {}

  DeviceUnderTest Device() const {
    const std::shared_ptr<State> s = state_;
    DeviceUnderTest device;
    device.open = [s, open = open_] { return Watched(open(), s); };
    device.live = [s] { return s->live.load(); };
    device.calls = [s] { return s->calls.load(); };
    device.allocations = [s] { return s->allocations.load(); };
    device.set_capacity = [s](std::size_t nbytes) { s->capacity = nbytes; };
    device.refuse_allocation = [s](int nth) { s->refuse = nth; };
    device.fail_write = [s](int nth) { s->fail_write = nth; };
    device.heal = [s] { s->refuse = s->fail_write = 0; };
    return device;
  }

 private:
  struct State {
    std::mutex mutex;  // of `used`
    std::size_t used = 0;
    std::atomic<std::size_t> capacity{std::numeric_limits<std::size_t>::max()};
    std::atomic<std::size_t> live{0};
    std::atomic<std::uint64_t> calls{0}, allocations{0};
    std::atomic<int> refuse{0}, fail_write{0};  // in how many calls from now; 0: in none
    const std::uint32_t domain = NewDomain();

    bool Take(std::size_t nbytes) {
      const std::lock_guard lock(mutex);
      if (nbytes > capacity || used > capacity - nbytes) return false;
      used += nbytes;
      return true;
    }
    void GiveBack(std::size_t nbytes) {
      const std::lock_guard lock(mutex);
      used -= nbytes;
    }
  };
  static bool Falls(std::atomic<int>& in) { return in > 0 && --in == 0; }

  static PackedAllocator Watched(const PackedAllocator& device, const std::shared_ptr<State>& s) {
    AnyRecord record = device.record();
    record.traits.transfer_domain = record.traits.memory_domain = s->domain;
    record.host_ptr = nullptr;
    record.alloc = [s, alloc = record.alloc](std::size_t nbytes, const BufferSpec& spec) -> absl::StatusOr<AnyBuf> {
      ++s->calls;
      if (spec.external_ptr.has_value()) return alloc(nbytes, spec);
      ++s->allocations;
      if (Falls(s->refuse)) return absl::UnavailableError("refused");
      if (!s->Take(nbytes)) {
        return absl::ResourceExhaustedError(absl::StrCat("alloc of ", nbytes, " bytes of ", s->capacity.load()));
      }
      absl::StatusOr<AnyBuf> buf = alloc(nbytes, spec);
      if (buf.ok()) {
        ++s->live;
      } else {
        s->GiveBack(nbytes);
      }
      return buf;
    };
    record.free = [s, free = record.free](const AnyBuf& buf, std::size_t nbytes, const BufferSpec& spec) {
      ++s->calls;
      absl::Status freed = free(buf, nbytes, spec);
      if (freed.ok() && !spec.external_ptr.has_value()) {
        --s->live;
        s->GiveBack(nbytes);
      }
      return freed;
    };
    record.copyin = [s, copyin = record.copyin](const AnyBuf& dest, absl::Span<const std::byte> src) -> absl::Status {
      ++s->calls;
      if (Falls(s->fail_write)) return absl::InternalError("the write failed");
      return copyin(dest, src);
    };
    record.copyout = [s, copyout = record.copyout](absl::Span<std::byte> dest, const AnyBuf& src) {
      ++s->calls;
      return copyout(dest, src);
    };
    record.transfer = [s, transfer = record.transfer](const AnyBuf& dest, const AnyBuf& src, std::size_t nbytes) {
      ++s->calls;
      return transfer(dest, src, nbytes);
    };
    return *device.WithRecord(std::move(record));
  }

  std::function<PackedAllocator()> open_;
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace packalloc::testing

#endif  // PACKALLOC_TEST_BACKENDS_WATCHED_DEVICE_H_
