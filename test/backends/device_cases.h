// What the backend of every device has to survive, written once: memory that runs out, sizes that no device has,
// threads, any order of destruction, functions of the user's that throw, failures half-way, files that come short. The
// test of a backend says how to open it, what its driver sees, and how to make it fail.
#ifndef PACKALLOC_TEST_BACKENDS_DEVICE_CASES_H_
#define PACKALLOC_TEST_BACKENDS_DEVICE_CASES_H_

#include <cstddef>
#include <cstdint>
#include <functional>

#include "packalloc/buffer_spec.h"
#include "packalloc/packed_allocator.h"

namespace packalloc::testing {

struct DeviceUnderTest {
  std::function<PackedAllocator()> open;  // a fresh record of one and the same device
  // What the driver sees.
  std::function<std::size_t()> live;           // memory objects that are not released
  std::function<std::uint64_t()> calls;        // of all entry points
  std::function<std::uint64_t()> allocations;  // calls that ask for memory, refused ones included
  // What it does from now on.
  std::function<void(std::size_t nbytes)> set_capacity;
  std::function<void(int nth)> refuse_allocation;  // the nth from now (1: the next) fails, not for want of memory
  std::function<void(int nth)> fail_write;         // the nth copy from the host fails
  std::function<void()> heal;                      // no more of these failures

  bool moves_bytes = true;
  // What external memory needs beside its address to be wrapped: a spec, and to be made known and forgotten.
  BufferSpec external{};
  std::function<void(void* memory, std::size_t nbytes)> make_known = [](void*, std::size_t) {};
  std::function<void(void* memory)> forget = [](void*) {};
};

// Runs all of them on the device.
void RunDeviceCases(const DeviceUnderTest& device);

}  // namespace packalloc::testing

#endif  // PACKALLOC_TEST_BACKENDS_DEVICE_CASES_H_
