// Copies between buffers of CUDA records, on the strict fake driver: overlap, kinds, streams and devices.
#include <cuda.h>
#include <doctest/doctest.h>

#include <cstring>
#include <utility>

#include "packalloc/backends/cpu.h"
#include "packalloc/buffer.h"
#include "packalloc/copy.h"
#include "packalloc/layers/lru.h"
#include "packalloc/packed_allocator.h"
#include "test/backends/cuda_fake.h"

namespace cuda_test {
namespace {

using packalloc::BufferSpec;

TEST_CASE("a transfer inside one buffer is memmove, at every distance") {
  UnderEachSchedule(1, [](fake_cuda_schedule) {
    const Allocator<CudaBuf> cuda = Open({.staging_slot_bytes = 4096});
    constexpr std::size_t kSize = 1000;
    const CudaBuf buf = Must(cuda.alloc(kSize, {}));
    for (const std::size_t nbytes : {1u, 128u, 700u, 1000u}) {
      for (const std::size_t from : {0u, 1u, 16u, 100u, 300u}) {
        for (const std::size_t to : {0u, 1u, 3u, 16u, 99u, 300u}) {
          if (from + nbytes > kSize || to + nbytes > kSize) continue;
          std::vector<std::byte> model = Pattern(kSize, static_cast<std::uint32_t>(from * 31 + to));
          Must(cuda.copyin(buf, model));
          std::memmove(model.data() + to, model.data() + from, nbytes);
          Must(cuda.transfer(Must(cuda.offset(buf, nbytes, to)), Must(cuda.offset(buf, nbytes, from)), nbytes));
          CHECK_MESSAGE(Read(cuda, buf) == model, nbytes << " bytes from " << from << " to " << to);
        }
      }
    }
    Must(cuda.free(buf, kSize, {}));
  });
}

// Any two kinds of memory, of one record, of two records over one device, and of two devices.
void AnyToAny(const Allocator<CudaBuf>& one, const Allocator<CudaBuf>& two) {
  const BufferSpec specs[] = {{}, {.host = true}, {.cpu_access = true}};
  constexpr std::size_t kSize = 20'000;
  for (const BufferSpec& from : specs) {
    for (const BufferSpec& to : specs) {
      INFO(ToString(from), " to ", ToString(to));
      const CudaBuf src = Must(one.alloc(kSize, from));
      const CudaBuf dest = Must(two.alloc(kSize, to));
      const std::vector<std::byte> in = Pattern(kSize, 3);
      // No synchronisation but that of the transfer: the copyin is pending, and what follows overwrites.
      Must(one.copyin(src, in));
      Must(two.copyin(dest, Pattern(kSize, 4)));
      Must(two.transfer(Must(two.offset(dest, kSize - 7, 7)), src, kSize - 7));
      Must(one.copyin(src, Pattern(kSize, 5)));
      std::vector<std::byte> wanted = Pattern(kSize, 4);
      std::memcpy(wanted.data() + 7, in.data(), kSize - 7);
      CHECK(Read(two, dest) == wanted);
      // By the source's record, and freed while it is pending.
      Must(one.transfer(dest, src, kSize));
      Must(one.free(src, kSize, from));
      CHECK(Read(two, dest) == Pattern(kSize, 5));
      Must(two.free(dest, kSize, to));
    }
  }
  CHECK(fake_cuda_live(FAKE_CUDA_EVENT) <= 8);  // those of the staging slots
}

TEST_CASE("transfer: any kind of memory to any other") {
  UnderEachSchedule(1, [](fake_cuda_schedule) {
    const Allocator<CudaBuf> one = Open({.staging_slot_bytes = 4096});
    AnyToAny(one, one);
  });
}

TEST_CASE("transfer: between two records over one device, each on its stream") {
  UnderEachSchedule(
      1, [](fake_cuda_schedule) { AnyToAny(Open({.staging_slot_bytes = 4096}), Open({.staging_slot_bytes = 4096})); });
}

TEST_CASE("transfer: between two devices that reach each other, one way, or not at all") {
  for (const std::pair<int, int>& peers : {std::pair(1, 1), std::pair(1, 0), std::pair(0, 1), std::pair(0, 0)}) {
    const int forth = peers.first;
    const int back = peers.second;
    INFO("0 reaches 1: ", forth, ", 1 reaches 0: ", back);
    for (const bool pinned : {true, false}) {
      UnderEachSchedule(2, [&](fake_cuda_schedule) {
        fake_cuda_set_peer(0, 1, forth);
        fake_cuda_set_peer(1, 0, back);
        CudaOptions options{.pinned_staging = pinned, .staging_slot_bytes = 4096};
        const Allocator<CudaBuf> one = Open(options);
        options.device = 1;
        const Allocator<CudaBuf> two = Open(options);
        AnyToAny(one, two);
        // Pinned and managed memory is within everybody's reach; device to device is not.
        CHECK((fake_cuda_calls("cuMemcpyPeerAsync") != 0) == (forth != 0 || back != 0));
        CHECK((fake_cuda_calls("cuCtxEnablePeerAccess") != 0) == (forth != 0 || back != 0));
      });
    }
  }
}

TEST_CASE("transfer: called on a third record, whose synchronize then covers it") {
  UnderEachSchedule(2, [](fake_cuda_schedule) {
    const Allocator<CudaBuf> one = Open();
    const Allocator<CudaBuf> two = Open({.device = 1});
    const Allocator<CudaBuf> third = Open();
    const std::vector<std::byte> in = Pattern(5000);
    const CudaBuf a = Must(one.alloc(5000, {}));
    const CudaBuf b = Must(two.alloc(5000, {.cpu_access = true}));
    Must(one.copyin(a, in));
    Must(third.transfer(b, a, 5000));
    Must(third.synchronize());
    CHECK(std::memcmp(Must(two.host_ptr(b)), in.data(), 5000) == 0);
    Must(one.free(a, 5000, {}));
    Must(two.free(b, 5000, {.cpu_access = true}));
  });
}

TEST_CASE("transfer: packed allocators of all CUDA devices are one domain, through layers") {
  const Fake fake(FAKE_CUDA_LAZY, 2);
  const packalloc::PackedAllocator one = Must(packalloc::Lru(Must(packalloc::Pack(Open()))));
  const packalloc::PackedAllocator two = Must(packalloc::Pack(Open({.device = 1})));
  CHECK(one.same_transfer_domain(two));
  const packalloc::AnyBuf a = Must(one.alloc(100));
  const packalloc::AnyBuf b = Must(two.alloc(100));
  Must(one.copyin(a, Pattern(100)));
  Must(two.transfer(b, a, 100));
  std::vector<std::byte> out(100);
  Must(two.copyout(absl::MakeSpan(out), b));
  CHECK(out == Pattern(100));
  CHECK(two.transfer(b, a, 101).code() == absl::StatusCode::kOutOfRange);
  Must(one.free(a, 100));
  Must(two.free(b, 100));
}

TEST_CASE("Copy: the CPU to CUDA and back, to another device, and never by the CPU's touch of device memory") {
  UnderEachSchedule(2, [](fake_cuda_schedule) {
    const packalloc::PackedAllocator cpu = Must(packalloc::Pack(packalloc::CpuAllocator()));
    const packalloc::PackedAllocator zero = Must(packalloc::Pack(Open()));
    const packalloc::PackedAllocator one = Must(packalloc::Pack(Open({.device = 1})));
    packalloc::Buffer from(cpu, 1000), there(zero, 1000), other(one, 1000), back(cpu, 1000), small(zero, 999);
    Must(from.CopyIn(Pattern(1000)));
    Must(packalloc::Copy(Must(there.ref()), Must(from.ref())));
    Must(packalloc::Copy(Must(other.ref()), Must(there.ref())));
    Must(packalloc::Copy(Must(back.ref()), Must(other.ref())));
    std::vector<std::byte> out(1000);
    Must(back.CopyOut(absl::MakeSpan(out)));
    CHECK(out == Pattern(1000));
    CHECK_FALSE(packalloc::Copy(Must(small.ref()), Must(from.ref())).ok());
  });
}

}  // namespace
}  // namespace cuda_test
