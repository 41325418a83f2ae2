#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/bars.h"
#include "bench/measure.h"
#include "packalloc/packed_allocator.h"
#include "packalloc/registry.h"

namespace packalloc::bench {
namespace {

// Seconds that all threads of this process compute for: the driver copies on a thread of its own, and waiting for a
// processor that others have does not count. The hand-over to that thread, some 10 microseconds a call, is left out.
template <typename Work>
double ProcessSeconds(Work&& work) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double start = now();
  work();
  return now() - start;
}

}  // namespace

Bar OpenClCopyOverMemcpy() {
  return {"opencl_copy_over_memcpy", "OpenCL copyin and copyout of 16 and 64 MiB over memcpy, the worst of them", 1.25,
          Bar::Kind::kAtMost, []() -> absl::StatusOr<double> {
            const absl::StatusOr<PackedAllocator> cl = Open("CL");
            if (!cl.ok()) return cl.status();
            double worst = 0;
            for (const std::size_t nbytes : {std::size_t{16} << 20, std::size_t{64} << 20}) {
              const BufferSpec spec{.cpu_access = true};  // so that memcpy goes over the same memory
              absl::StatusOr<AnyBuf> buf = cl->alloc(nbytes, spec);
              if (!buf.ok()) return buf.status();
              const absl::StatusOr<std::byte*> data = cl->host_ptr(*buf);
              if (!data.ok()) return data.status();
              std::vector<std::byte> host(nbytes, std::byte{1});
              const auto timed = [](auto copy) {
                return [copy] {
                  return ProcessSeconds([&copy] {
                    copy();
                    benchmark::ClobberMemory();
                  });
                };
              };
              const RatioOptions options{.rounds = 51};
              const double in = MedianRatioOfTimes(options, timed([&] { cl->copyin(*buf, host).IgnoreError(); }),
                                                   timed([&] { std::memcpy(*data, host.data(), nbytes); }));
              const double out =
                  MedianRatioOfTimes(options, timed([&] { cl->copyout(absl::MakeSpan(host), *buf).IgnoreError(); }),
                                     timed([&] { std::memcpy(host.data(), *data, nbytes); }));
              worst = std::max({worst, in, out});
              if (absl::Status freed = cl->free(*buf, nbytes, spec); !freed.ok()) return freed;
            }
            return worst;
          }};
}

}  // namespace packalloc::bench
