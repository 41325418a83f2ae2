#include "test/backends/device_cases.h"

#include <chrono>
#include <future>
#include <vector>

#include "test/backends/device_case.h"

namespace packalloc::testing {

void Cached::Keep(std::initializer_list<std::size_t> sizes) const {
  std::vector<AnyBuf> bufs;
  for (const std::size_t nbytes : sizes) bufs.push_back(Ok(memory.alloc(nbytes)));
  for (const AnyBuf& buf : bufs) Free(memory, buf);
}

bool ServesAnotherThread(const PackedAllocator& memory) {
  auto served = std::async(std::launch::async, [&memory] {
    const absl::StatusOr<AnyBuf> buf = memory.alloc(64);
    return buf.ok() && memory.free(*buf, 64).ok();
  });
  return served.wait_for(std::chrono::seconds(30)) == std::future_status::ready && served.get();
}

PackedAllocator WithExceptions(const PackedAllocator& device, const std::shared_ptr<Throwing>& throwing) {
  return Ok(ApplyLayer(device, [&throwing](const AnyRecord& inner) -> absl::StatusOr<AnyRecord> {
    AnyRecord outer = inner;
    outer.alloc = [alloc = inner.alloc, throwing](std::size_t nbytes, const BufferSpec& spec) {
      if (throwing->in_alloc) throw 42;
      return alloc(nbytes, spec);
    };
    outer.copyin = [copyin = inner.copyin, throwing](const AnyBuf& dest, absl::Span<const std::byte> src) {
      if (throwing->in_copyin) throw 42;
      return copyin(dest, src);
    };
    outer.free = [free = inner.free, throwing](const AnyBuf& buf, std::size_t nbytes, const BufferSpec& spec) {
      const bool throws = throwing->in_free > 0 && --throwing->in_free == 0;
      if (throws && !throwing->frees_all_the_same) throw 42;
      absl::Status freed = free(buf, nbytes, spec);
      if (throws) throw 42;
      return freed;
    };
    return outer;
  }));
}

void RunDeviceCases(const DeviceUnderTest& device) {
  for (const DeviceCaseList& list : {CacheCases(), LifetimeCases(), FaultCases(), CopyCases()}) {
    for (const DeviceCase& one : list) {
      INFO("case: ", std::string(one.name));
      device.set_capacity(std::size_t{1} << 30);
      const std::size_t live_before = device.live();
      one.run(device);
      device.heal();
      CHECK(device.live() == live_before);
    }
  }
}

}  // namespace packalloc::testing
