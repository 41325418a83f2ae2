#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "bench/bars.h"
#include "bench/measure.h"
#include "packalloc/backends/cpu.h"
#include "packalloc/packed_allocator.h"

namespace packalloc::bench {
namespace {

constexpr std::size_t kMib = std::size_t{1} << 20;

void Touch(std::byte* data, std::size_t nbytes) {
  for (std::size_t i = 0; i < nbytes; i += 4096) data[i] = std::byte{1};
  benchmark::ClobberMemory();
}

bool HugePagesAllowed() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  const std::string modes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return absl::StrContains(modes, "[always]") || absl::StrContains(modes, "[madvise]");
}

}  // namespace

Bar CpuFirstTouchOverMalloc() {
  return {"cpu_first_touch_over_malloc", "alloc and first touch of a fresh 64 MiB CPU buffer over malloc's", 0.3,
          Bar::Kind::kAtMost, []() -> absl::StatusOr<double> {
            if (!HugePagesAllowed()) {
              return absl::UnavailableError("huge pages are not allowed (/sys/kernel/mm/transparent_hugepage/enabled)");
            }
            constexpr std::size_t kBytes = 64 * kMib;
            const Allocator<CpuBuf> cpu = CpuAllocator();
            const auto ours = [&cpu] {
              CpuBuf buf;
              const double seconds = Seconds([&] {
                buf = *cpu.alloc(kBytes, {});
                Touch(buf.data, kBytes);
              });
              cpu.free(buf, kBytes, {}).IgnoreError();
              return seconds;
            };
            const auto mallocs = [] {
              void* block = nullptr;
              const double seconds = Seconds([&block] {
                block = std::malloc(kBytes);
                Touch(static_cast<std::byte*>(block), kBytes);
              });
              std::free(block);
              return seconds;
            };
            return MedianRatioOfTimes({.rounds = 21}, ours, mallocs);
          }};
}

Bar CpuCopyOverMemcpy() {
  return {"cpu_copy_over_memcpy", "CPU copyin and copyout of 1 to 64 MiB over memcpy, the worst of them", 1.05,
          Bar::Kind::kAtMost, []() -> absl::StatusOr<double> {
            const PackedAllocator cpu = *Pack(CpuAllocator());
            double worst = 0;
            for (const std::size_t nbytes : {kMib, 8 * kMib, 64 * kMib}) {
              absl::StatusOr<AnyBuf> buf = cpu.alloc(nbytes);
              if (!buf.ok()) return buf.status();
              std::byte* const data = buf->get<CpuBuf>()->data;  // memcpy goes over the same memory
              std::vector<std::byte> host(nbytes, std::byte{1});
              const std::size_t repeats = 64 * kMib / nbytes;
              const auto repeat = [repeats](auto copy) {
                return [repeats, copy] {
                  for (std::size_t i = 0; i < repeats; ++i) {
                    copy();
                    benchmark::ClobberMemory();
                  }
                };
              };
              const RatioOptions options{.rounds = 31};
              const double in = MedianRatio(options, repeat([&] { cpu.copyin(*buf, host).IgnoreError(); }),
                                            repeat([&] { std::memcpy(data, host.data(), nbytes); }));
              const double out =
                  MedianRatio(options, repeat([&] { cpu.copyout(absl::MakeSpan(host), *buf).IgnoreError(); }),
                              repeat([&] { std::memcpy(host.data(), data, nbytes); }));
              worst = std::max({worst, in, out});
              if (absl::Status freed = cpu.free(*buf, nbytes); !freed.ok()) return freed;
            }
            return worst;
          }};
}

}  // namespace packalloc::bench
