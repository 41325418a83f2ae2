// A record over malloc that counts its calls, can have a capacity, and can be told to fail or throw.
#ifndef PACKALLOC_TEST_LAYERS_FAKE_RECORD_H_
#define PACKALLOC_TEST_LAYERS_FAKE_RECORD_H_

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "packalloc/allocator.h"

namespace packalloc {

struct Fake {
  ~Fake() {
    for (const auto& [at, nbytes] : live) std::free(at);
  }
  std::mutex mutex;
  std::map<void*, std::size_t> live;
  std::size_t live_bytes = 0;
  std::size_t capacity = SIZE_MAX;
  bool log_calls = true;
  std::vector<std::string> log;            // "alloc 512", "alloc 512 failed", "free 512", "synchronize"
  std::size_t foreign_frees = 0;           // of what is not live, or with another size
  std::function<absl::Status()> on_alloc;  // called first, outside the mutex; may throw
  std::function<absl::Status()> on_free;

  void Log(std::string entry) {
    if (log_calls) log.push_back(std::move(entry));
  }
  std::size_t live_count() {
    std::lock_guard lock(mutex);
    return live.size();
  }
};

inline Allocator<void*> FakeRecord(std::shared_ptr<Fake> fake) {
  Allocator<void*> record;
  record.traits.name = "FAKE";
  record.traits.min_alignment = 16;
  record.alloc = [fake](std::size_t nbytes, const BufferSpec& spec) -> absl::StatusOr<void*> {
    if (spec.external_ptr) return reinterpret_cast<void*>(*spec.external_ptr);
    if (fake->on_alloc) {
      if (absl::Status s = fake->on_alloc(); !s.ok()) return s;
    }
    std::lock_guard lock(fake->mutex);
    if (nbytes > fake->capacity - fake->live_bytes) {
      fake->Log(absl::StrCat("alloc ", nbytes, " failed"));
      return absl::ResourceExhaustedError("FAKE is full");
    }
    fake->Log(absl::StrCat("alloc ", nbytes));
    void* p = nbytes > (std::size_t{1} << 22)
                  ? std::malloc(1)  // large ones are never touched
                  : std::aligned_alloc(std::max<std::size_t>(spec.alignment, 16),
                                       (nbytes + spec.alignment + 15) / std::max<std::size_t>(spec.alignment, 16) *
                                           std::max<std::size_t>(spec.alignment, 16));
    if (spec.zero) std::memset(p, 0, nbytes);
    fake->live[p] = nbytes;
    fake->live_bytes += nbytes;
    return p;
  };
  record.free = [fake](void* const& p, std::size_t nbytes, const BufferSpec& spec) -> absl::Status {
    if (spec.external_ptr) return absl::OkStatus();
    if (fake->on_free) {
      if (absl::Status s = fake->on_free(); !s.ok()) return s;
    }
    std::lock_guard lock(fake->mutex);
    fake->Log(absl::StrCat("free ", nbytes));
    const auto it = fake->live.find(p);
    if (it == fake->live.end() || it->second != nbytes) {
      ++fake->foreign_frees;
      return absl::InvalidArgumentError("free of what is not live");
    }
    fake->live.erase(it);
    fake->live_bytes -= nbytes;
    std::free(p);
    return absl::OkStatus();
  };
  record.copyin = [](void* const& dest, absl::Span<const std::byte> src) {
    std::memcpy(dest, src.data(), src.size());
    return absl::OkStatus();
  };
  record.copyout = [](absl::Span<std::byte> dest, void* const& src) {
    std::memcpy(dest.data(), src, dest.size());
    return absl::OkStatus();
  };
  record.addr = [](void* const& p) { return DeviceAddress{reinterpret_cast<std::uintptr_t>(p), 0}; };
  record.synchronize = [fake] {
    std::lock_guard lock(fake->mutex);
    fake->Log("synchronize");
    return absl::OkStatus();
  };
  return record;
}

}  // namespace packalloc

#endif  // PACKALLOC_TEST_LAYERS_FAKE_RECORD_H_
