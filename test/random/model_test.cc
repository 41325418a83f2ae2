// Random stacks of layers on every backend that moves or names memory, held to a model of plain bytes. Steps in all:
// PACKALLOC_MODEL_STEPS; the seed is printed, and PACKALLOC_MODEL_SEED repeats it.
#include "test/random/model.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "lib/env.h"
#include "packalloc/backends/cpu.h"
#include "packalloc/backends/cuda.h"
#include "packalloc/backends/disk.h"
#include "packalloc/backends/mock.h"
#include "packalloc/backends/null.h"
#include "packalloc/layers/fallback.h"
#include "packalloc/layers/limited.h"
#include "packalloc/registry.h"
#include "test/layers/random_stack.h"
#include "test/temp_dir.h"
#ifdef FAKE_CUDA_LIBRARY
#include "test/fake_cuda/fake_cuda.h"
#endif

namespace packalloc::testing {
namespace {

struct Backend {
  std::string name;
  std::function<PackedAllocator()> make;
  bool keeps_bytes = true;
  bool can_be_cached = true;
};

// Every allocation of DISK begins at the file's first byte. Here each gets bytes that no other has.
PackedAllocator DiskInPieces(const std::string& path) {
  Allocator<DiskExtent> disk = *DiskAllocator(path, {.write = true});
  disk.alloc = [alloc = disk.alloc, offset = disk.offset, end = std::make_shared<std::size_t>(0)](
                   std::size_t nbytes, const BufferSpec& spec) -> absl::StatusOr<DiskExtent> {
    const absl::StatusOr<DiskExtent> whole = alloc(*end + nbytes, spec);
    if (!whole.ok()) return whole.status();
    return offset(*whole, nbytes, std::exchange(*end, *end + nbytes));
  };
  return *Pack(std::move(disk));
}

std::vector<Backend> Backends(const TempDir& dir) {
  const auto mock = [](MockOptions options) {
    options.log_calls = false;
    return [options] { return *Pack(MockAllocator(options)); };
  };
  std::vector<Backend> backends = {
      {"CPU", [] { return *Pack(CpuAllocator()); }},
      {"MOCK", mock({.capacity_bytes = 200000})},
      {"MOCK, lazy", mock({.lazy = true})},
      {"MOCK, opaque handles, as a GPU", mock({.address_is_pointer = false, .host_accessible = false, .lazy = true})},
      {"MOCK without views and transfers", mock({.absent = {Member::kOffset, Member::kTransfer}})},
      {"NULL", [] { return *Pack(NullAllocator()); }, false},
      {"DISK", [file = dir.Write("disk", "")] { return DiskInPieces(file); }},
      {"CPU, behind another that is small",
       [] { return *Fallback(*Limited(*Pack(CpuAllocator()), 20000), *Pack(CpuAllocator())); }, true, false},
  };
#ifdef FAKE_CUDA_LIBRARY
  setenv("PACKALLOC_LIBCUDA", FAKE_CUDA_LIBRARY, 1);
  backends.push_back({"CUDA, on the fake driver", [] {
                        CudaOptions options;
                        options.staging_slot_bytes = 1024;  // so that most copies take several turns
                        return *Pack(*CudaAllocator(options));
                      }});
#endif
  if (Open("CL").ok()) {
    backends.push_back({"CL", [] { return *Open("CL"); }});
  } else {
    std::cout << "CL left out: " << Open("CL").status().message() << "\n";
  }
  return backends;
}

TEST_CASE("random operations on random stacks keep every byte") {
  const std::uint64_t seed = EnvBytes("PACKALLOC_MODEL_SEED", std::random_device{}());
  const std::uint64_t steps = EnvBytes("PACKALLOC_MODEL_STEPS", 20000);
  std::cout << "PACKALLOC_MODEL_SEED=" << seed << " PACKALLOC_MODEL_STEPS=" << steps << "\n";
  std::mt19937_64 random(seed);
  const TempDir files;
  const std::vector<Backend> backends = Backends(files);
  constexpr std::size_t kEpisode = 400;
  for (std::uint64_t done = 0; done < steps; done += kEpisode) {
    const Backend& backend = backends[random() % backends.size()];
    const TempDir dir;
    const RandomStack stack(random, dir.path());
    if (stack.Has("lru") && !backend.can_be_cached) continue;
    const WorldFactory make = [&] {
      World world;
      const PackedAllocator device = backend.make();
      world.mock = Find<MockControl>(device);
      world.device = *stack.Over(device);
      world.keeps_bytes = backend.keeps_bytes;
      world.frees_may_fail = !stack.Has("lru");
      world.checked = stack.Has("checked");
      return world;
    };
    const std::vector<Step> sequence = RandomSteps(random, kEpisode);
    const std::optional<std::string> wrong = Run(make, sequence);
    if (!wrong) continue;
    const std::vector<Step> small = Shrink(make, sequence);
    FAIL(backend.name << stack.text() << ": " << *wrong << "\n"
                      << small.size() << " steps are enough:\n"
                      << Story(make, small) << *Run(make, small));
  }
#ifdef FAKE_CUDA_LIBRARY
  CHECK_MESSAGE(fake_cuda_violation_count() == 0, fake_cuda_report());
#endif
}

TEST_CASE("the model finds a device that loses a byte, with few steps") {
  std::mt19937_64 random(1);
  const WorldFactory broken = [] {
    Allocator<CpuBuf> cpu = CpuAllocator();
    cpu.copyin = [copyin = cpu.copyin](const CpuBuf& dest, absl::Span<const std::byte> src) {
      std::vector<std::byte> bytes(src.begin(), src.end());
      if (bytes.size() > 3000) bytes.back() ^= std::byte{1};
      return copyin(dest, bytes);
    };
    return World{.device = *Pack(cpu)};
  };
  const std::vector<Step> steps = RandomSteps(random, 400);
  REQUIRE(Run(broken, steps).has_value());
  CHECK(Shrink(broken, steps).size() <= 3);
}

}  // namespace
}  // namespace packalloc::testing
