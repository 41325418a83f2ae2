// What the cases of device_cases.h are written with.
#ifndef PACKALLOC_TEST_BACKENDS_DEVICE_CASE_H_
#define PACKALLOC_TEST_BACKENDS_DEVICE_CASE_H_

#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "packalloc/copy.h"
#include "packalloc/layers/lru.h"
#include "packalloc/packed_allocator.h"
#include "test/backends/device_cases.h"

namespace packalloc::testing {

struct DeviceCase {
  const char* name;
  void (*run)(const DeviceUnderTest&);
};
using DeviceCaseList = std::vector<DeviceCase>;
// Each in a file of its own.
DeviceCaseList CacheCases();
DeviceCaseList LifetimeCases();
DeviceCaseList FaultCases();
DeviceCaseList CopyCases();

inline constexpr std::size_t kKiB = 1024;
inline constexpr std::size_t kMiB = kKiB * kKiB;

template <typename T>
T Ok(absl::StatusOr<T> value) {
  REQUIRE_MESSAGE(value.ok(), value.status().ToString());
  return *std::move(value);
}
inline void Ok(const absl::Status& status) { REQUIRE_MESSAGE(status.ok(), status.ToString()); }

inline absl::Span<const std::byte> Bytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

inline std::string Content(const PackedAllocator& memory, const AnyBuf& buf) {
  std::string text(buf.nbytes(), '\0');
  Ok(memory.copyout({reinterpret_cast<std::byte*>(text.data()), text.size()}, buf));
  return text;
}

// Whether the buffer holds `text`; of a device that moves no bytes, that it can be read.
inline bool Holds(const DeviceUnderTest& device, const PackedAllocator& memory, const AnyBuf& buf,
                  const std::string& text) {
  const std::string content = Content(memory, buf);
  return !device.moves_bytes || content == text;
}

inline void Free(const PackedAllocator& memory, const AnyBuf& buf) { Ok(memory.free(buf, buf.nbytes())); }

inline BufferRef Filled(const PackedAllocator& memory, const std::string& text) {
  const BufferRef ref{memory, Ok(memory.alloc(text.size()))};
  Ok(memory.copyin(ref.buffer, Bytes(text)));
  return ref;
}

// A cache over a fresh record of the device.
struct Cached {
  explicit Cached(const DeviceUnderTest& device, const LruOptions& options = {})
      : memory(Ok(Lru(device.open(), options))), control(Find<LruControl>(memory)) {}
  // Puts one free buffer of each size into the cache.
  void Keep(std::initializer_list<std::size_t> sizes) const;
  LruStats stats() const { return control->stats(); }

  PackedAllocator memory;
  std::shared_ptr<LruControl> control;
};

// Another thread gets memory: no lock was left held.
bool ServesAnotherThread(const PackedAllocator& memory);

// When functions of a record throw 42; shared, so that it can change while the record is in use.
struct Throwing {
  std::atomic<bool> in_alloc{false};
  std::atomic<bool> in_copyin{false};
  std::atomic<int> in_free{0};                 // in how many frees from now (1: the next); 0: in none
  std::atomic<bool> frees_all_the_same{true};  // a free that throws has done its work, so that nothing is lost
};
PackedAllocator WithExceptions(const PackedAllocator& device, const std::shared_ptr<Throwing>& throwing);

// The ways in which three things can end one after another.
inline constexpr int kOrders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};

}  // namespace packalloc::testing

#endif  // PACKALLOC_TEST_BACKENDS_DEVICE_CASE_H_
