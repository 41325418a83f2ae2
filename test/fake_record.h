// A record over the heap for tests of what lies above a record: it counts calls, keeps the set of live blocks, and
// runs hooks in which a test throws, waits or fails.
#ifndef PACKALLOC_TEST_FAKE_RECORD_H_
#define PACKALLOC_TEST_FAKE_RECORD_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <set>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "packalloc/allocator.h"

namespace packalloc {

struct Fake {
  std::mutex mutex;
  std::set<void*> live;
  int allocs = 0;
  int frees = 0;
  int foreign_frees = 0;       // of what is not live
  std::atomic<int> copies{0};  // copyin, copyout, transfer, offset, addr
  // Called, without the mutex, at the start of a call; what it returns or throws is the call's result.
  std::function<absl::Status()> on_alloc = [] { return absl::OkStatus(); };
  std::function<absl::Status()> on_free = [] { return absl::OkStatus(); };
  std::function<absl::Status()> on_copyin = [] { return absl::OkStatus(); };
  std::function<absl::Status()> on_offset = [] { return absl::OkStatus(); };
};

// Has every optional member but copy_from_disk, host_ptr and memory_info.
inline Allocator<void*> FakeRecord(const std::shared_ptr<Fake>& fake) {
  Allocator<void*> record;
  record.traits.name = "FAKE";
  record.alloc = [fake](std::size_t nbytes, const BufferSpec& spec) -> absl::StatusOr<void*> {
    if (absl::Status hook = fake->on_alloc(); !hook.ok()) return hook;
    void* block = spec.external_ptr ? reinterpret_cast<void*>(*spec.external_ptr) : std::malloc(nbytes);
    const std::lock_guard lock(fake->mutex);
    ++fake->allocs;
    fake->live.insert(block);
    return block;
  };
  record.free = [fake](void* const& block, std::size_t, const BufferSpec& spec) -> absl::Status {
    if (absl::Status hook = fake->on_free(); !hook.ok()) return hook;
    {
      const std::lock_guard lock(fake->mutex);
      ++fake->frees;
      if (fake->live.erase(block) == 0) {
        ++fake->foreign_frees;
        return absl::OkStatus();
      }
    }
    if (!spec.external_ptr) std::free(block);
    return absl::OkStatus();
  };
  record.copyin = [fake](void* const& dest, absl::Span<const std::byte> src) -> absl::Status {
    if (absl::Status hook = fake->on_copyin(); !hook.ok()) return hook;
    ++fake->copies;
    std::memcpy(dest, src.data(), src.size());
    return absl::OkStatus();
  };
  record.copyout = [fake](absl::Span<std::byte> dest, void* const& src) {
    ++fake->copies;
    std::memcpy(dest.data(), src, dest.size());
    return absl::OkStatus();
  };
  record.addr = [fake](void* const& block) {
    ++fake->copies;
    return DeviceAddress{reinterpret_cast<std::uintptr_t>(block), 0};
  };
  record.offset = [fake](void* const& block, std::size_t, std::size_t byte_offset) -> absl::StatusOr<void*> {
    if (absl::Status hook = fake->on_offset(); !hook.ok()) return hook;
    return static_cast<std::byte*>(block) + byte_offset;
  };
  record.transfer = [fake](void* const& dest, void* const& src, std::size_t nbytes) {
    ++fake->copies;
    std::memmove(dest, src, nbytes);
    return absl::OkStatus();
  };
  return record;
}

}  // namespace packalloc

#endif  // PACKALLOC_TEST_FAKE_RECORD_H_
