// Tensors that TVM-FFI asks its environment for, from a TensorPool.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lib/tensor/dlpack_abi.h"
#include "packalloc/backends/cpu.h"
#include "packalloc/backends/mock.h"
#include "packalloc/interop/tvm_ffi.h"
#include "packalloc/packed_allocator.h"
#include "packalloc/tensor/dlpack.h"
#include "packalloc/tensor/tensor_pool.h"
#include "test/interop/fake_tvm_ffi/fake_tvm_ffi.h"

namespace packalloc {
namespace {

constexpr DlDevice kDevice{DlDevice::kExtDev, 0};

// What a maker of tensors in TVM does: null with an error raised where there is none.
DlpackVersionedPtr Make(std::vector<std::int64_t> shape, DataType dtype = kFloat32, DlDevice device = kDevice) {
  FakeTvmFfiClearRaised();
  dlpack_abi::Tensor prototype{};
  prototype.device = device;
  prototype.dtype = dtype;
  prototype.ndim = static_cast<std::int32_t>(shape.size());
  prototype.shape = shape.data();
  DLManagedTensorVersioned* made = nullptr;
  const int code = TVMFFIEnvTensorAlloc(&prototype, &made);
  CHECK((code == 0) == (made != nullptr));
  return DlpackVersionedPtr(made);
}

std::string Raised() { return FakeTvmFfiRaisedKind(); }

// A pool over a mock.
struct Pool {
  explicit Pool(TensorPoolOptions options = {}, MockOptions mock_options = {}) {
    auto record = MockAllocator(std::move(mock_options));
    mock = Find<MockControl>(record);
    pool = *TensorPool::Make({{kDevice, *Pack(record)}}, options);
  }
  std::shared_ptr<MockControl> mock;
  TensorPool pool;
};

TEST_CASE("a tensor comes from the pool and goes back to it") {
  Pool p;
  const auto hook = InstallTvmFfiTensorAllocator(p.pool);
  REQUIRE(hook.ok());
  DlpackVersionedPtr tensor = Make({3, 5});
  REQUIRE(tensor != nullptr);
  const dlpack_abi::ManagedVersioned& managed = *dlpack_abi::From(tensor.get());
  CHECK(managed.version.major == 1);
  const dlpack_abi::Tensor& dl = managed.dl_tensor;
  CHECK(dl.ndim == 2);
  CHECK(dl.shape[0] == 3);
  CHECK(dl.shape[1] == 5);
  CHECK(dl.strides[0] == 5);
  CHECK(dl.strides[1] == 1);
  CHECK(dl.dtype == kFloat32);
  CHECK(dl.device == kDevice);
  CHECK(reinterpret_cast<std::uintptr_t>(dl.data) % 256 == 0);
  CHECK(p.pool.cache()->stats().in_use_bytes == 4096);
  tensor.reset();
  CHECK(p.pool.cache()->stats().in_use_bytes == 0);
  CHECK(p.pool.cache()->stats().cached_bytes == 4096);
  Make({1, 1});
  CHECK(p.pool.cache()->stats().hits == 1);
  CHECK(Make({}) != nullptr);      // one element
  CHECK(Make({0, 7}) != nullptr);  // none
  CHECK(hook->Uninstall().ok());
}

TEST_CASE("tensors outlive the hook and the pool") {
  std::optional<Pool> p;
  p.emplace();
  const std::shared_ptr<MockControl> mock = p->mock;
  DlpackVersionedPtr tensor;
  {
    const auto hook = InstallTvmFfiTensorAllocator(p->pool);
    REQUIRE(hook.ok());
    tensor = Make({16});
    p.reset();
    CHECK(Make({16}) != nullptr);  // the hook keeps the pool
    CHECK(hook->Uninstall().ok());
    CHECK(mock->live_blocks() >= 1);
  }
  CHECK(Make({16}) == nullptr);
  CHECK(Raised() == "RuntimeError");
  std::thread([&] { tensor.reset(); }).join();
  CHECK(mock->live_blocks() == 0);
  CHECK(mock->misuses().empty());
}

TEST_CASE("what cannot be had is an error of the right kind, and nothing is kept") {
  Pool p({}, {.capacity_bytes = 1 << 20});
  const auto hook = InstallTvmFfiTensorAllocator(p.pool);
  REQUIRE(hook.ok());
  CHECK(Make({1 << 20}) == nullptr);
  CHECK(Raised() == "MemoryError");
  CHECK(Make({-1, 4}) == nullptr);
  CHECK(Raised() == "ValueError");
  CHECK(Make({std::int64_t{1} << 62, 8}) == nullptr);
  CHECK(Raised() == "ValueError");
  CHECK(Make({4}, DataType(99, 8)) == nullptr);
  CHECK(Raised() == "ValueError");
  CHECK(Make({4}, kFloat32, {DlDevice::kCuda, 3}) == nullptr);
  CHECK(Raised() == "ValueError");
  CHECK(std::string(FakeTvmFfiRaisedMessage()).find("CUDA:3") != std::string::npos);
  p.mock->FailNth(Member::kAlloc, 1, absl::UnavailableError("lost"));
  CHECK(Make({4}) == nullptr);
  CHECK(Raised() == "RuntimeError");
  p.mock->ThrowNth(Member::kAlloc, 1, std::make_exception_ptr(std::runtime_error("thrown")));
  CHECK(Make({4}) == nullptr);
  CHECK(Raised() == "RuntimeError");
  CHECK(std::string(FakeTvmFfiRaisedMessage()) == "thrown");
  p.mock->ThrowNth(Member::kAlloc, 1, std::make_exception_ptr(42));
  CHECK(Make({4}) == nullptr);
  CHECK(Raised() == "RuntimeError");

  // Prototypes that are none.
  DLManagedTensorVersioned* made = nullptr;
  dlpack_abi::Tensor prototype{};
  prototype.ndim = 2;
  CHECK(TVMFFIEnvTensorAlloc(&prototype, &made) == -1);
  prototype.ndim = -1;
  CHECK(TVMFFIEnvTensorAlloc(&prototype, &made) == -1);
  CHECK(TVMFFIEnvTensorAlloc(nullptr, &made) == -1);
  CHECK(Raised() == "ValueError");
  CHECK(made == nullptr);

  CHECK(p.mock->live_blocks() == 0);
  CHECK(Make({4}) != nullptr);
  CHECK(hook->Uninstall().ok());
  FakeTvmFfiClearRaised();
}

// Somebody else's allocator, which gives tensors of a pool of its own.
TensorPool& ForeignPool() {
  static TensorPool& pool = *new TensorPool;
  return pool;
}
int ForeignCallback(void* prototype, DLManagedTensorVersioned** out, void* /*context*/, tvm_ffi_abi::SetError) {
  const auto* dl = static_cast<const dlpack_abi::Tensor*>(prototype);
  *out = ToDlpackVersioned(*ForeignPool().Empty({dl->shape, static_cast<std::size_t>(dl->ndim)}, dl->dtype))->release();
  return 0;
}

// A pool whose memory comes from tensors of TVM-FFI.
TensorPool PoolFromTvm() {
  TensorPoolOptions options;
  options.replace = [](TensorPoolFunctions own) {
    own.alloc_backing = [](std::size_t nbytes, std::size_t, DlDevice) -> absl::StatusOr<Buffer> {
      DlpackVersionedPtr tensor = Make({static_cast<std::int64_t>(nbytes)}, kUInt8, {DlDevice::kCpu, 0});
      if (tensor == nullptr) return absl::ResourceExhaustedError(FakeTvmFfiRaisedMessage());
      absl::StatusOr<Buffer> buffer = BufferFromDlpack(tensor.get());
      if (buffer.ok()) static_cast<void>(tensor.release());
      return buffer;
    };
    return own;
  };
  return *TensorPool::Make(*Pack(CpuAllocator()), options);
}

TEST_CASE("a pool that would get its memory from itself gets it from the allocator before it, or an error") {
  constexpr DlDevice kCpu{DlDevice::kCpu, 0};
  for (const bool this_thread_only : {false, true}) {
    CAPTURE(this_thread_only);
    const TensorPool pool = PoolFromTvm();
    {
      const auto hook = InstallTvmFfiTensorAllocator(pool, {.this_thread_only = this_thread_only});
      REQUIRE(hook.ok());
      CHECK(Make({100}, kFloat32, kCpu) == nullptr);
      CHECK(Raised() == "MemoryError");
      CHECK(std::string(FakeTvmFfiRaisedMessage()).find("from itself") == std::string::npos);
      CHECK(std::string(FakeTvmFfiRaisedMessage()).find("its own memory") != std::string::npos);
      CHECK(hook->Uninstall().ok());
    }
    ForeignPool() = *TensorPool::Make(*Pack(CpuAllocator()));
    REQUIRE(TVMFFIEnvSetDLPackManagedTensorAllocator(&ForeignCallback, 1, nullptr) == 0);
    REQUIRE(TVMFFIEnvSetDLPackManagedTensorAllocator(this_thread_only ? &ForeignCallback : nullptr, 0, nullptr) == 0);
    {
      const auto hook = InstallTvmFfiTensorAllocator(pool, {.this_thread_only = this_thread_only});
      REQUIRE(hook.ok());
      DlpackVersionedPtr tensor = Make({100}, kFloat32, kCpu);
      CHECK(tensor != nullptr);
      CHECK(pool.UsedMemory() == 4096);
      CHECK(ForeignPool().UsedMemory() == 4096);
      CHECK(hook->Uninstall().ok());
    }
    CHECK((TVMFFIEnvGetDLPackManagedTensorAllocator() == &ForeignCallback));
    REQUIRE(TVMFFIEnvSetDLPackManagedTensorAllocator(nullptr, 1, nullptr) == 0);
    ForeignPool() = TensorPool();
  }
  FakeTvmFfiClearRaised();
}

TEST_CASE("for the process and for one thread: the thread's goes first, and each is uninstalled in its place") {
  Pool process;
  Pool thread;
  const auto for_process = InstallTvmFfiTensorAllocator(process.pool);
  REQUIRE(for_process.ok());
  const auto in_use = [&] {
    return std::pair(process.pool.cache()->stats().in_use_bytes, thread.pool.cache()->stats().in_use_bytes);
  };
  {
    const auto for_thread = InstallTvmFfiTensorAllocator(thread.pool, {.this_thread_only = true});
    REQUIRE(for_thread.ok());
    const DlpackVersionedPtr here = Make({1});
    CHECK(in_use() == std::pair<std::size_t, std::size_t>(0, 4096));
    std::thread([&] {
      const DlpackVersionedPtr there = Make({1});
      CHECK(in_use() == std::pair<std::size_t, std::size_t>(4096, 4096));
      CHECK(for_thread->Uninstall().code() == absl::StatusCode::kFailedPrecondition);
    }).join();
    CHECK(for_thread->Uninstall().ok());
    CHECK(for_thread->Uninstall().code() == absl::StatusCode::kFailedPrecondition);
  }
  const DlpackVersionedPtr here = Make({1});
  CHECK(in_use() == std::pair<std::size_t, std::size_t>(4096, 0));
  std::thread([&] { CHECK(for_process->Uninstall().ok()); }).join();
  CHECK(Make({1}) == nullptr);
  FakeTvmFfiClearRaised();
}

TEST_CASE("one on top of the other, uninstalled in order; another's on top is left alone") {
  for (const bool this_thread_only : {false, true}) {
    CAPTURE(this_thread_only);
    const TvmFfiTensorOptions options{.this_thread_only = this_thread_only};
    Pool a;
    Pool b;
    const auto of_a = InstallTvmFfiTensorAllocator(a.pool, options);
    const auto of_b = InstallTvmFfiTensorAllocator(b.pool, options);
    REQUIRE(of_a.ok());
    REQUIRE(of_b.ok());
    const DlpackVersionedPtr from_b = Make({1});
    CHECK(b.pool.cache()->stats().in_use_bytes == 4096);
    CHECK(of_a->Uninstall().code() == absl::StatusCode::kFailedPrecondition);
    CHECK(of_b->Uninstall().ok());
    const DlpackVersionedPtr from_a = Make({1});
    CHECK(a.pool.cache()->stats().in_use_bytes == 4096);

    const int global = this_thread_only ? 0 : 1;
    tvm_ffi_abi::TensorAllocator ours = TVMFFIEnvGetDLPackManagedTensorAllocator();
    REQUIRE(TVMFFIEnvSetDLPackManagedTensorAllocator(&ForeignCallback, global, nullptr) == 0);
    CHECK(of_a->Uninstall().code() == absl::StatusCode::kFailedPrecondition);
    CHECK((TVMFFIEnvGetDLPackManagedTensorAllocator() == &ForeignCallback));
    REQUIRE(TVMFFIEnvSetDLPackManagedTensorAllocator(ours, global, nullptr) == 0);
    if (!this_thread_only) REQUIRE(TVMFFIEnvSetDLPackManagedTensorAllocator(nullptr, 0, nullptr) == 0);
    CHECK(of_a->Uninstall().ok());
    CHECK((TVMFFIEnvGetDLPackManagedTensorAllocator() == nullptr));
  }
}

TEST_CASE("what cannot be installed changes nothing") {
  CHECK(InstallTvmFfiTensorAllocator(TensorPool()).status().code() == absl::StatusCode::kInvalidArgument);
  Pool p;
  for (const bool this_thread_only : {false, true}) {
    FakeTvmFfiFailToSet(true);
    const auto failed = InstallTvmFfiTensorAllocator(p.pool, {.this_thread_only = this_thread_only});
    FakeTvmFfiFailToSet(false);
    CHECK(failed.status().code() == absl::StatusCode::kInternal);
    CHECK(Make({1}) == nullptr);
  }
  CHECK(TvmFfiTensorAllocator().Uninstall().code() == absl::StatusCode::kFailedPrecondition);
  FakeTvmFfiClearRaised();
}

TEST_CASE("threads make and drop tensors while a hook for the process is there") {
  Pool p;
  const auto hook = InstallTvmFfiTensorAllocator(p.pool);
  REQUIRE(hook.ok());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 300; ++i) {
        if (Make({1 + i % 7, 100 * (t + 1)}) == nullptr) FAIL("no tensor");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(p.pool.cache()->stats().in_use_bytes == 0);
  CHECK(hook->Uninstall().ok());
}

}  // namespace
}  // namespace packalloc
