// What the CUDA backend does when the driver fails: every entry point, every call, and the errors that end a context.
#include <cuda.h>
#include <doctest/doctest.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <set>
#include <string>

#include "packalloc/disk_file.h"
#include "packalloc/layers/lru.h"
#include "packalloc/packed_allocator.h"
#include "test/backends/cuda_fake.h"
#include "test/temp_dir.h"

namespace cuda_test {
namespace {

using packalloc::BufferSpec;

// Frees until it succeeds: an error of free means that nothing was freed.
void FreeSurely(const Allocator<CudaBuf>& record, const CudaBuf& buf, const BufferSpec& spec) {
  for (int i = 0; i < 3; ++i) {
    if (record.free(buf, buf.nbytes, spec).ok()) return;
  }
  FAIL_CHECK("free goes on failing");
}

packalloc::DiskExtent FileOf(const std::vector<std::byte>& bytes) {
  static const packalloc::TempDir dir;
  static const auto file = Must(packalloc::DiskFile::Open(
      dir.Write("f", std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()))));
  return {file, 0, bytes.size()};
}

// Everything a record does, going on after errors as a program may. Data is checked where all that made it succeeded.
void Scenario(CudaOptions options) {
  const absl::StatusOr<Allocator<CudaBuf>> one = CudaAllocator(options);
  CudaOptions second = options;
  second.device = 1;
  const absl::StatusOr<Allocator<CudaBuf>> two = CudaAllocator(second);
  constexpr std::size_t kSize = 10'000;
  for (const BufferSpec& spec : {BufferSpec{}, BufferSpec{.host = true, .zero = true, .alignment = 4096},
                                 BufferSpec{.cpu_access = true}, BufferSpec{.zero = true}}) {
    if (!one.ok()) continue;
    const absl::StatusOr<CudaBuf> a = one->alloc(kSize, spec);
    if (!a.ok()) continue;
    static const std::vector<std::byte> in = Pattern(kSize);
    std::vector<std::byte> out(kSize);
    const auto same = [&out] { return std::memcmp(out.data(), in.data(), kSize) == 0; };
    bool whole = one->copyin(*a, in).ok();
    if (one->copyout(absl::MakeSpan(out), *a).ok() && whole) CHECK(same());
    const CudaBuf head = Must(one->offset(*a, kSize - 1, 0));
    const CudaBuf tail = Must(one->offset(*a, kSize - 1, 1));
    static_cast<void>(one->transfer(tail, head, kSize - 1));
    if (two.ok()) {
      const absl::StatusOr<CudaBuf> b = two->alloc(kSize, {});
      if (b.ok()) {
        whole = one->copyin(*a, in).ok() && two->transfer(*b, *a, kSize).ok();
        if (two->copyout(absl::MakeSpan(out), *b).ok() && whole) CHECK(same());
        whole = whole && one->transfer(*a, *b, kSize).ok();
        if (one->copyout(absl::MakeSpan(out), *a).ok() && whole) CHECK(same());
        FreeSurely(*two, *b, {});
      }
    }
    const BufferSpec wrapping{.host = spec.host, .external_ptr = a->ptr};
    if (absl::StatusOr<CudaBuf> wrapped = one->alloc(kSize, wrapping); wrapped.ok()) {
      FreeSurely(*one, *wrapped, wrapping);
    }
    whole = one->copy_from_disk(*a, FileOf(in), kSize).ok();
    if (one->copyout(absl::MakeSpan(out), *a).ok() && whole) CHECK(same());
    static_cast<void>(one->memory_info());
    static_cast<void>(one->synchronize());
    FreeSurely(*one, *a, spec);
  }
}

struct Sweep {
  std::uint64_t injected = 0;
  std::set<std::string> functions;
};

// Fails each entry point that the scenario calls at its first call, its second, ... until a run fails none.
void FailEachCall(Sweep& sweep, const std::function<void()>& prepare, const CudaOptions& options) {
  std::vector<std::string> functions;
  {
    const Fake fake(FAKE_CUDA_LAZY, 2);
    prepare();
    Scenario(options);
    for (std::size_t i = 0; fake_cuda_called(i) != nullptr; ++i) functions.emplace_back(fake_cuda_called(i));
  }
  for (const std::string& function : functions) {
    for (std::uint64_t nth = 1;; ++nth) {
      INFO("call ", nth, " of ", function);
      const Fake fake(FAKE_CUDA_LAZY, 2);
      prepare();
      // Those that the test itself and the loader make once are not the backend's.
      if (function == "cuInit" || function == "cuDriverGetVersion") break;
      fake_cuda_fail(function.c_str(), nth, CUDA_ERROR_UNKNOWN);
      Scenario(options);
      if (fake_cuda_failures_made() == 0) break;
      ++sweep.injected;
      sweep.functions.insert(function);
    }
  }
}

TEST_CASE("every entry point fails at every call: an error at most, no misuse, no leak, no lock left held") {
  Sweep sweep;
  const auto reachable = [] {};
  const auto apart = [] {
    fake_cuda_set_peer(0, 1, 0);
    fake_cuda_set_peer(1, 0, 0);
  };
  CudaOptions options;
  options.staging_slot_bytes = 4096;
  options.staging_slots = 2;
  FailEachCall(sweep, reachable, options);
  FailEachCall(sweep, apart, options);
  options.pinned_staging = false;
  FailEachCall(sweep, apart, options);
  options.pinned_staging = true;
  options.allocation = packalloc::CudaAllocation::kStreamOrdered;
  options.pool_release_threshold = 1 << 20;
  FailEachCall(sweep, reachable, options);
  std::string names;
  for (const std::string& name : sweep.functions) names += " " + name;
  std::printf("failed %llu calls of %zu entry points:%s\n", static_cast<unsigned long long>(sweep.injected),
              sweep.functions.size(), names.c_str());
  CHECK(sweep.functions.size() >= 30);
}

TEST_CASE("one failed allocation leaves no error behind") {
  UnderEachSchedule(1, [](fake_cuda_schedule) {
    const Allocator<CudaBuf> cuda = Open();
    fake_cuda_fail("cuMemAlloc_v2", 1, CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(cuda.alloc(100, {}).status().code() == absl::StatusCode::kResourceExhausted);
    const CudaBuf buf = Must(cuda.alloc(100, {}));
    Must(cuda.copyin(buf, Pattern(100)));
    Must(cuda.synchronize());
    CHECK(Read(cuda, buf) == Pattern(100));
    Must(cuda.free(buf, 100, {}));
  });
}

TEST_CASE("an alloc that the driver refuses for another reason is neither exhaustion nor retried") {
  const Fake fake;
  const packalloc::PackedAllocator cached = Must(packalloc::Lru(Must(packalloc::Pack(Open()))));
  Must(cached.free(Must(cached.alloc(512)), 512));
  fake_cuda_fail("cuMemAlloc_v2", 0, CUDA_ERROR_INVALID_DEVICE);
  const std::uint64_t before = fake_cuda_calls("cuMemAlloc_v2");
  const absl::Status refused = cached.alloc(1024).status();
  CHECK(refused.code() == absl::StatusCode::kNotFound);
  CHECK(fake_cuda_calls("cuMemAlloc_v2") == before + 1);
  CHECK(packalloc::Find<packalloc::LruControl>(cached)->stats().flushes == 0);
}

TEST_CASE("after a sticky error the device's records are dead, once, without driver calls; others live") {
  for (const int code : {226, 700, 702, 714, 715, 716, 717, 718, 719, 721, 810, 911}) {
    INFO("code ", code);
    Fake fake(FAKE_CUDA_LAZY, 2);
    const packalloc::PackedAllocator cached = Must(packalloc::Lru(Must(packalloc::Pack(Open()))));
    const Allocator<CudaBuf> same_device = Open();
    const Allocator<CudaBuf> other = Open({.device = 1});
    const packalloc::AnyBuf kept = Must(cached.alloc(100));
    Must(cached.free(Must(cached.alloc(512)), 512));
    const CudaBuf pinned = Must(same_device.alloc(64, {.host = true}));
    Must(same_device.copyin(Must(same_device.offset(pinned, 10, 0)), Pattern(10)));

    fake_cuda_fail("cuMemAlloc_v2", 1, code);
    const absl::Status lost = cached.alloc(4096).status();
    CHECK_MESSAGE(lost.code() == absl::StatusCode::kDataLoss, lost.ToString());
    CHECK(lost.message().find(std::to_string(code)) != std::string::npos);
    CHECK(packalloc::Find<packalloc::LruControl>(cached)->stats().flushes == 0);

    const std::uint64_t before = fake_cuda_calls("*");
    std::vector<std::byte> bytes(10);
    CHECK(cached.alloc(4096).status().code() == absl::StatusCode::kDataLoss);
    CHECK(cached.copyin(kept, bytes).code() == absl::StatusCode::kDataLoss);
    CHECK(cached.copyout(absl::MakeSpan(bytes), kept).code() == absl::StatusCode::kDataLoss);
    CHECK(same_device.synchronize().code() == absl::StatusCode::kDataLoss);
    CHECK(same_device.memory_info().status().code() == absl::StatusCode::kDataLoss);
    CHECK(same_device.free(pinned, 64, {.host = true}).ok());
    CHECK(cached.free(kept, 100).ok());
    CHECK(packalloc::Find<packalloc::LruControl>(cached)->Clear().ok());
    CHECK(fake_cuda_calls("*") == before);

    const CudaBuf alive = Must(other.alloc(100, {}));
    Must(other.copyin(alive, Pattern(100)));
    CHECK(Read(other, alive) == Pattern(100));
    CHECK(other.transfer(alive, CudaBuf{.ptr = alive.ptr, .nbytes = 10, .device = 0}, 5).code() ==
          absl::StatusCode::kOk);  // the same address: nothing to do
    Must(other.free(alive, 100, {}));
    fake.check_leaks = false;  // what a dead context held cannot be given back
  }
}

TEST_CASE(
    "a wait that fails once is an error; one that fails twice loses the context, for nobody knows what is in use") {
  Fake fake;
  const Allocator<CudaBuf> cuda = Open();
  const CudaBuf buf = Must(cuda.alloc(100, {}));
  fake_cuda_fail("cuStreamSynchronize", 1, CUDA_ERROR_UNKNOWN);
  CHECK(cuda.synchronize().code() == absl::StatusCode::kInternal);
  Must(cuda.synchronize());
  Must(cuda.copyin(buf, Pattern(100)));
  fake_cuda_fail("cuStreamSynchronize", 0, CUDA_ERROR_UNKNOWN);
  CHECK(cuda.synchronize().code() == absl::StatusCode::kDataLoss);
  fake_cuda_clear_failures();
  CHECK(cuda.synchronize().code() == absl::StatusCode::kDataLoss);
  CHECK(cuda.free(buf, 100, {}).ok());
  fake.check_leaks = false;  // what a lost context held is not given back
}

TEST_CASE("an error that arrives late, at a synchronisation, loses the context too") {
  Fake fake;
  const Allocator<CudaBuf> cuda = Open();
  const CudaBuf buf = Must(cuda.alloc(100, {}));
  Must(cuda.copyin(buf, Pattern(100)));
  fake_cuda_fail("cuStreamSynchronize", 1, CUDA_ERROR_LAUNCH_FAILED);
  CHECK(cuda.synchronize().code() == absl::StatusCode::kDataLoss);
  CHECK(cuda.copyin(buf, Pattern(100)).code() == absl::StatusCode::kDataLoss);
  CHECK(cuda.free(buf, 100, {}).ok());
  fake.check_leaks = false;
}

}  // namespace
}  // namespace cuda_test
