// Correct programs: the right bytes, and no report, under every schedule.
#include <cstring>
#include <thread>

#include "test/fake_cuda/fixture.h"

using namespace fake_cuda_test;

TEST_CASE("pinned bytes go to the device and back") {
  ExpectNothing([] {
    std::vector<unsigned char> bytes = Pattern();
    CUstream stream = NewStream();
    CUdeviceptr memory = Alloc();
    unsigned char* in = Pinned();
    unsigned char* out = Pinned();
    std::memcpy(in, bytes.data(), kBytes);
    OK(cuMemcpyHtoDAsync_v2(memory, in, kBytes, stream));
    OK(cuMemcpyDtoHAsync_v2(out, memory, kBytes, stream));
    OK(cuStreamSynchronize(stream));
    CHECK(std::memcmp(out, bytes.data(), kBytes) == 0);
    OK(cuMemFreeHost(in));
    OK(cuMemFreeHost(out));
    OK(cuMemFree_v2(memory));
    OK(cuStreamDestroy_v2(stream));
  });
}

TEST_CASE("a ring of pinned slots, each waited for before it is filled again") {
  ExpectNothing([] {
    constexpr int kSlots = 2, kChunks = 7;
    CUstream stream = NewStream();
    CUdeviceptr memory = Alloc(kChunks * kBytes);
    unsigned char* slots[kSlots];
    CUevent done[kSlots];
    for (int i = 0; i < kSlots; ++i) {
      slots[i] = Pinned();
      done[i] = NewEvent();
    }
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      int slot = chunk % kSlots;
      OK(cuEventSynchronize(done[slot]));
      std::memset(slots[slot], chunk, kBytes);
      OK(cuMemcpyHtoDAsync_v2(memory + static_cast<size_t>(chunk) * kBytes, slots[slot], kBytes, stream));
      OK(cuEventRecord(done[slot], stream));
    }
    OK(cuStreamSynchronize(stream));
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      unsigned char last = 0xFF;
      CHECK(fake_cuda_peek(&last, memory + static_cast<size_t>(chunk + 1) * kBytes - 1, 1) == 0);
      CHECK(last == chunk);
    }
    for (int i = 0; i < kSlots; ++i) {
      OK(cuMemFreeHost(slots[i]));
      OK(cuEventDestroy_v2(done[i]));
    }
    OK(cuMemFree_v2(memory));
    OK(cuStreamDestroy_v2(stream));
  });
}
