// The address space of the fake driver: who owns which addresses, and where the bytes lie.
//
// Device addresses come from a reservation that nobody can read or write, so a host that dereferences one faults; the
// bytes lie elsewhere. No address is used twice: what was freed stays known, so that its late users are told.
#ifndef PACKALLOC_TEST_FAKE_CUDA_MEMORY_H_
#define PACKALLOC_TEST_FAKE_CUDA_MEMORY_H_

#include <deque>
#include <map>

#include "test/fake_cuda/objects.h"

namespace fake_cuda {

inline constexpr unsigned char kFreshByte = 0xCB;  // device, pinned and managed memory that nobody wrote
inline constexpr unsigned char kDestinationByte =
    0xA5;                                          // a copy's destination in host memory until the copy is known done
inline constexpr unsigned char kFreedByte = 0xDD;  // pinned and managed memory after it was freed

class Memories {
 public:
  // New memory, or null where the machine has none left. Limits are the caller's to check. nbytes > 0.
  MemoryPtr NewDevice(size_t nbytes);
  MemoryPtr NewHost(MemoryKind kind, size_t nbytes);  // pinned or managed
  MemoryPtr Register(uintptr_t begin, size_t nbytes);
  // Ends memory that is live: its bytes go, its addresses stay known (those of registered memory do not).
  void End(const MemoryPtr& memory, const char* freed_by);

  // The memory, live or freed, that `address` lies in; null if none.
  MemoryPtr At(uintptr_t address) const;
  // The memory that ends closest before `address`, or null: for messages.
  MemoryPtr Before(uintptr_t address) const;
  // Live memory that overlaps the range, or null.
  MemoryPtr Overlapping(uintptr_t begin, size_t nbytes) const;
  // Whether `address` is one that device memory may get.
  bool IsDeviceAddress(uintptr_t address) const;
  const std::map<uintptr_t, MemoryPtr>& all() const { return memories_; }
  void EndAll();

 private:
  uintptr_t TakeAddresses(size_t nbytes);
  void Quarantine(const MemoryPtr& memory);

  std::map<uintptr_t, MemoryPtr> memories_;
  std::map<uintptr_t, uintptr_t> reservations_;  // begin and end
  uintptr_t next_address_ = 0, last_address_ = 0;
  uint64_t next_id_ = 0;
  // Freed pinned memory that still can be read (as 0xDD), oldest first.
  std::deque<MemoryPtr> quarantine_;
  size_t quarantined_ = 0;
};

// The bytes of a range of memory (not pageable), without checks.
void ReadBytes(const Memory& memory, uintptr_t address, std::byte* dest, size_t nbytes);
void WriteBytes(const Memory& memory, uintptr_t address, const std::byte* src, size_t nbytes);

// Host memory that may be gone by now: copies it, or returns false where it cannot be read.
bool ReadHostSafely(uintptr_t address, std::byte* dest, size_t nbytes);

}  // namespace fake_cuda

#endif  // PACKALLOC_TEST_FAKE_CUDA_MEMORY_H_
