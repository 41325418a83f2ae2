#include "packalloc/tensor/tensor_pool.h"

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "packalloc/backends/cpu.h"
#include "packalloc/backends/mock.h"
#include "packalloc/backends/null.h"
#include "packalloc/buffer.h"
#include "packalloc/packed_allocator.h"
#include "packalloc/registry.h"
#include "packalloc/tensor/dlpack.h"
#include "packalloc/tensor/tensor.h"

namespace packalloc {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kRange = absl::StatusCode::kOutOfRange;
constexpr DlDevice kDev0{DlDevice::kExtDev, 0};
constexpr DlDevice kDev1{DlDevice::kExtDev, 1};

struct MockDevice {
  explicit MockDevice(MockOptions options = {}) {
    Allocator<MockBuf> record = MockAllocator(std::move(options));
    mock = Find<MockControl>(record);
    packed = *Pack(record);
  }
  std::size_t allocs() const { return mock->log().Count(Member::kAlloc); }
  std::size_t frees() const { return mock->log().Count(Member::kFree); }

  std::shared_ptr<MockControl> mock;
  PackedAllocator packed;
};

TensorPool PoolOver(const MockDevice& device, const TensorPoolOptions& options = {}) {
  return *TensorPool::Make({{kDev0, device.packed}}, options);
}

TEST_CASE("memory comes again to a tensor of the same pages") {
  const MockDevice device;
  const TensorPool pool = PoolOver(device);
  std::uintptr_t address = 0;
  {
    const Tensor a = *pool.Empty({10, 10}, kFloat32);
    address = a.data().value;
    CHECK(a.nbytes() == 400);
    CHECK(a.capacity() == 4096);
    CHECK(address % 256 == 0);
    CHECK(pool.UsedMemory() == 4096);
  }
  CHECK(pool.UsedMemory() == 4096);  // cached
  const Tensor b = *pool.Empty({4096}, kUInt8);
  CHECK(b.data().value == address);
  const Tensor c = *pool.Empty({4096}, kUInt8);
  CHECK(c.data().value != address);
  const Tensor d = *pool.Empty({4097}, kUInt8);
  CHECK(d.capacity() == 8192);
  CHECK(pool.UsedMemory() == 4096 + 4096 + 8192);
  CHECK(device.allocs() == 3);
  CHECK(pool.cache()->stats().hits == 1);
}

TEST_CASE("Clear releases what is cached; tensors in use come back later") {
  const MockDevice device;
  const TensorPool pool = PoolOver(device);
  Tensor kept = *pool.Empty({1}, kUInt8);
  pool.Empty({1}, kUInt8)->nbytes();
  CHECK(pool.UsedMemory() == 2 * 4096);
  CHECK(pool.Clear().ok());
  CHECK(pool.UsedMemory() == 4096);
  CHECK(device.mock->live_blocks() == 1);
  CHECK(kept.CopyIn(std::vector<std::byte>(1)).ok());
  kept = Tensor();
  CHECK(pool.UsedMemory() == 4096);
  CHECK(device.frees() == 1);
  CHECK(pool.Empty({1}, kUInt8).ok());
  CHECK(device.allocs() == 2);
  CHECK(pool.Clear().ok());
  CHECK(pool.UsedMemory() == 0);
  CHECK(device.mock->live_blocks() == 0);
}

TEST_CASE("sizes that vary within a page make no new backings, and waste less than a page") {
  const MockDevice device;
  const TensorPool pool = PoolOver(device, {.page_size = 64});
  std::size_t after_the_first = 0;
  for (int i = 0; i < 3000; ++i) {
    const std::int64_t nbytes = std::array{1001, 1021, 1023}[static_cast<std::size_t>(i) % 3];
    const Tensor a = *pool.Empty({nbytes}, kUInt8);
    const Tensor b = *pool.Empty({nbytes}, kUInt8);
    CHECK(a.capacity() - a.nbytes() < pool.page_size());
    if (i == 2) after_the_first = device.allocs();
  }
  CHECK(after_the_first == 2);
  CHECK(device.allocs() == after_the_first);
  CHECK(pool.UsedMemory() == 2 * 1024);
}

TEST_CASE("a byte limit bounds what a pool keeps while shapes grow") {
  const MockDevice device;
  const TensorPool pool = PoolOver(device, {.max_cached_bytes = 100 << 10});
  for (std::int64_t i = 1; i < 2000; ++i) {
    CHECK(pool.Empty({i * 512}, kUInt8).ok());
    REQUIRE(pool.cache()->stats().cached_bytes <= 100 << 10);
    REQUIRE(device.mock->live_bytes() == pool.UsedMemory());
  }
}

TEST_CASE("page sizes and alignments that are no powers of two are errors") {
  const PackedAllocator cpu = *Pack(CpuAllocator());
  for (const std::size_t wrong : {std::size_t{0}, std::size_t{3}, std::size_t{4097}, SIZE_MAX}) {
    CHECK(TensorPool::Make(cpu, {.page_size = wrong}).status().code() == kInvalid);
    CHECK(TensorPool::Make(cpu, {.alignment = wrong}).status().code() == kInvalid);
  }
  CHECK(TensorPool::Make(cpu, {.page_size = 1})->Empty({3}, kUInt8)->capacity() == 3);
  CHECK(TensorPool::Make(PackedAllocator()).status().code() == kInvalid);
  CHECK(TensorPool::Make(MockDevice().packed).status().code() == kInvalid);  // which DLPack device?
  CHECK(TensorPool::Make(std::vector<TensorPoolDevice>{}).status().code() == kInvalid);
  CHECK(TensorPool::Make({{kDev0, PackedAllocator()}}).status().code() == kInvalid);
  CHECK(TensorPool::Make({{kDev0, cpu}, {kDev0, cpu}}).status().code() == kInvalid);
}

TEST_CASE("shapes and types that are wrong reach no device and change nothing") {
  const MockDevice device;
  const TensorPool pool = PoolOver(device);
  constexpr std::int64_t k2e62 = std::int64_t{1} << 62;
  constexpr std::int64_t k2e32 = std::int64_t{1} << 32;
  CHECK(pool.Empty({k2e62 + 1}, kFloat32).status().code() == kInvalid);  // its bytes wrap to 4
  CHECK(pool.Empty({k2e32, k2e32}, kUInt8).status().code() == kInvalid);
  CHECK(pool.Empty({-1, 4}, kFloat32).status().code() == kInvalid);
  CHECK(!pool.Empty({INT64_MAX}, kUInt8).ok());  // fits, but not rounded up
  CHECK(pool.Empty({1}, {99, 8}).status().code() == kInvalid);
  CHECK(pool.Empty({1}, kUInt8, kDev1).status().code() == kInvalid);
  CHECK(pool.Empty({1}, kUInt8, kDev0, "texture").status().code() == kInvalid);
  CHECK(pool.Empty({0}, kUInt8, kDev0, "texture").status().code() == kInvalid);
  CHECK(pool.Empty({1}, kUInt8, kDev0, "").ok());
  CHECK(device.allocs() == 1);
  CHECK(pool.UsedMemory() == 4096);
  const Tensor a = *pool.Empty({512}, kUInt8);
  const Tensor b = *pool.Empty({512}, kUInt8);
  CHECK(a.data().value != b.data().value);
}

TEST_CASE("no elements: no memory and null data") {
  const MockDevice device;
  const TensorPool pool = PoolOver(device);
  const Tensor empty = *pool.Empty({0, std::int64_t{1} << 62}, kFloat32);
  CHECK(empty);
  CHECK(empty.nbytes() == 0);
  CHECK(empty.data() == DeviceAddress{});
  CHECK(empty.CopyIn({}).ok());
  CHECK(empty.CopyOut({}).ok());
  CHECK(pool.CreateView(empty, {3, 0}, kUInt8).ok());
  CHECK(pool.CreateView(empty, {1}, kUInt8).status().code() == kRange);
  CHECK(empty.device() == kDev0);
  CHECK(device.allocs() == 0);
  CHECK(pool.UsedMemory() == 0);
  CHECK(pool.Empty({}, kFloat64)->nbytes() == 8);  // no dimensions: one element
}

TEST_CASE("views hold the memory, are bounded, and may be of tensors from elsewhere") {
  const MockDevice device;
  const TensorPool pool = PoolOver(device);
  Tensor a = *pool.Empty({10}, kFloat32);
  const std::uintptr_t address = a.data().value;
  CHECK(pool.CreateView(a, {1024}, kFloat32)->nbytes() == 4096);  // up to the page
  CHECK(pool.CreateView(a, {1024}, kFloat32, 1).status().code() == kRange);
  CHECK(pool.CreateView(a, {1}, kUInt8, SIZE_MAX).status().code() == kRange);
  CHECK(pool.CreateView(a, {1}, kUInt8, 0, "texture").status().code() == kInvalid);
  CHECK(pool.CreateView(Tensor(), {1}, kUInt8).status().code() == absl::StatusCode::kFailedPrecondition);
  Tensor view = *pool.CreateView(a, {16}, kUInt8, 100);
  Tensor of_view = *pool.CreateView(view, {4}, kUInt8, 12);
  CHECK(of_view.data().value == address + 112);
  CHECK(pool.CreateView(view, {4}, kUInt8, 13).status().code() == kRange);
  a = view = Tensor();
  CHECK(pool.cache()->stats().cached_buffers == 0);  // the last view has it
  CHECK(pool.Empty({1}, kUInt8)->data().value != address);
  of_view = Tensor();
  CHECK(pool.cache()->stats().cached_buffers == 2);

  const MockDevice other;
  const Tensor elsewhere = *Tensor::Over(Buffer(other.packed, 64), {64}, kUInt8, {.device = kDev1});
  const Tensor part = *pool.CreateView(elsewhere, {8}, kUInt8, 56);
  CHECK(part.device() == kDev1);
  CHECK(pool.CreateView(elsewhere, {8}, kUInt8, 57).status().code() == kRange);
  CHECK(pool.UsedMemory() == 2 * 4096);
}

TEST_CASE("devices do not mix") {
  const MockDevice zero;
  const MockDevice one({.name = "MOCK:1"});
  const TensorPool pool = *TensorPool::Make({{kDev0, zero.packed}, {kDev1, one.packed}});
  CHECK(pool.Empty({1}, kUInt8)->device() == kDev0);
  CHECK(pool.Empty({1}, kUInt8, kDev1)->device() == kDev1);
  CHECK(zero.allocs() == 1);
  CHECK(one.allocs() == 1);
  CHECK(pool.UsedMemory() == 2 * 4096);
  CHECK(pool.cache(kDev1)->Clear().ok());
  CHECK(one.mock->live_blocks() == 0);
  CHECK(zero.mock->live_blocks() == 1);
  CHECK(pool.cache(DlDevice{DlDevice::kCpu}) == nullptr);
  CHECK(zero.mock->misuses().empty());
  CHECK(one.mock->misuses().empty());
}

TEST_CASE("alignment: 256 bytes, an element's own where it is larger, and the device's where data is a handle") {
  const TensorPool pool = *TensorPool::Make(*Pack(CpuAllocator()));
  for (int i = 0; i < 16; ++i) CHECK(pool.Empty({2048}, kUInt8)->data().value % 256 == 0);
  const DataType wide{DataType::kFloat, 64, 512};  // 4 KiB an element
  {
    const Tensor aligned = *pool.Empty({1}, wide);
    CHECK(aligned.data().value % 4096 == 0);
    CHECK(pool.Empty({4096}, kUInt8)->data().value != aligned.data().value);
  }
  CHECK(pool.Empty({1}, wide)->data().value % 4096 == 0);
  CHECK(TensorPool::Make(*Pack(CpuAllocator()), {.alignment = 8192})->Empty({1}, kUInt8)->data().value % 8192 == 0);
  const MockDevice handles({.min_alignment = 64, .address_is_pointer = false});
  const Tensor opaque = *PoolOver(handles).Empty({1}, kUInt8);
  CHECK(!opaque.data_is_pointer());
  CHECK(handles.mock->live().front().spec.alignment == 64);
}

TEST_CASE("a device that cannot align as the pool asks: the error names the pool's option") {
  Allocator<MockBuf> record = MockAllocator();
  record.alloc = [inner = record.alloc](std::size_t nbytes, const BufferSpec& spec) -> absl::StatusOr<MockBuf> {
    if (spec.alignment > 64) return absl::InvalidArgumentError("no alignment above 64");
    return inner(nbytes, spec);
  };
  const PackedAllocator device = *Pack(std::move(record));
  const absl::Status refused = TensorPool::Make({{kDev0, device}})->Empty({1}, kUInt8).status();
  CHECK(refused.code() == kInvalid);
  CHECK(refused.message().find("the tensor pool asks for alignment 256 (TensorPoolOptions::alignment") !=
        absl::string_view::npos);
  CHECK(refused.message().find("no alignment above 64") != absl::string_view::npos);
  CHECK(TensorPool::Make({{kDev0, device}}, {.alignment = 64})->Empty({1}, kUInt8).ok());
}

TEST_CASE("exhausted: what is cached goes first, other errors are passed on as they are") {
  const MockDevice device({.capacity_bytes = 1 << 20});
  const TensorPool pool = PoolOver(device);
  CHECK(pool.Empty({512 << 10}, kUInt8).ok());
  const Tensor large = *pool.Empty({768 << 10}, kUInt8);
  CHECK(device.frees() == 1);
  CHECK(pool.Empty({512 << 10}, kUInt8).status().code() == absl::StatusCode::kResourceExhausted);
  CHECK(pool.UsedMemory() == 768 << 10);
  device.mock->FailNth(Member::kAlloc, 1, absl::UnavailableError("device lost"));
  CHECK(pool.Empty({1}, kUInt8).status().code() == absl::StatusCode::kUnavailable);
  device.mock->ThrowNth(Member::kAlloc, 1, std::make_exception_ptr(std::runtime_error("no")));
  CHECK_THROWS_AS(pool.Empty({1}, kUInt8).IgnoreError(), std::runtime_error);
  CHECK(pool.UsedMemory() == 768 << 10);
  CHECK(pool.Empty({1}, kUInt8).ok());
}

TEST_CASE("functions of a pool can be replaced, and call those they replace") {
  const MockDevice device;
  std::vector<std::string> calls;
  TensorPoolFunctions stale;
  {
    const TensorPool pool =
        PoolOver(device, {.replace = [&](TensorPoolFunctions own) {
                   stale = own;
                   const absl::Status early = own.empty({1}, kUInt8, kDev0, "global").status();
                   CHECK(early.code() == absl::StatusCode::kFailedPrecondition);
                   CHECK(std::string(early.message()).find("still being made") != std::string::npos);
                   TensorPoolFunctions used = own;
                   used.empty = [&calls, next = own.empty](absl::Span<const std::int64_t> shape, DataType dtype,
                                                           DlDevice on, std::string_view scope) {
                     calls.emplace_back("empty");
                     return next(shape, dtype, on, scope);
                   };
                   used.create_view = [&calls, next = own.create_view](
                                          const Tensor& backing, absl::Span<const std::int64_t> shape, DataType dtype,
                                          std::size_t offset, std::string_view scope) {
                     calls.emplace_back("view");
                     return next(backing, shape, dtype, offset, scope);
                   };
                   used.alloc_backing = [&calls, next = own.alloc_backing](std::size_t nbytes, std::size_t alignment,
                                                                           DlDevice on) {
                     calls.push_back("backing " + std::to_string(nbytes) + " " + std::to_string(alignment));
                     return next(nbytes, alignment, on);
                   };
                   return used;
                 }});
    const Tensor a = *pool.Empty({5000}, kUInt8);
    CHECK(pool.CreateView(a, {1}, kUInt8).ok());
    CHECK(calls == std::vector<std::string>{"empty", "backing 8192 256", "view"});
    CHECK(stale.empty({1}, kUInt8, kDev0, "global").ok());
  }
  CHECK(stale.empty({1}, kUInt8, kDev0, "global").status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK(TensorPool::Make({{kDev0, device.packed}},
                         {.replace = [](const TensorPoolFunctions&) { return TensorPoolFunctions{}; }})
            .status()
            .code() == kInvalid);
  CHECK(device.mock->live_blocks() == 0);
}

TEST_CASE("a replaced alloc_backing is checked") {
  const MockDevice device;
  Buffer answer(device.packed, 100);
  absl::Status error;
  const TensorPool pool =
      PoolOver(device, {.replace = [&](TensorPoolFunctions own) {
                 own.alloc_backing = [&](std::size_t, std::size_t, DlDevice) -> absl::StatusOr<Buffer> {
                   if (!error.ok()) return error;
                   return answer;
                 };
                 return own;
               }});
  CHECK(pool.Empty({1}, kUInt8).status().code() == absl::StatusCode::kInternal);  // too small
  answer = *Buffer(device.packed, 8192).View(4097, 1);
  CHECK(pool.Empty({1}, kUInt8).status().code() == absl::StatusCode::kInternal);  // not aligned
  answer = Buffer();
  CHECK(!pool.Empty({1}, kUInt8).ok());
  error = absl::AbortedError("mine");
  CHECK(pool.Empty({1}, kUInt8).status().code() == absl::StatusCode::kAborted);
  CHECK(pool.UsedMemory() == 0);
}

TEST_CASE("an alloc_backing that asks its own pool gets memory that is not pooled") {
  const MockDevice device;
  std::optional<TensorPool> pool;
  int nested = 0;
  pool = PoolOver(
      device, {.replace = [&](TensorPoolFunctions own) {
        own.alloc_backing = [&](std::size_t nbytes, std::size_t alignment, DlDevice) -> absl::StatusOr<Buffer> {
          ++nested;
          const absl::StatusOr<Tensor> tensor = pool->Empty({static_cast<std::int64_t>(nbytes + alignment)}, kUInt8);
          if (!tensor.ok()) return tensor.status();
          // Keeps the tensor as long as the backing.
          return Buffer::Wrap(device.packed, reinterpret_cast<void*>(tensor->data().value), nbytes,
                              [keep = *tensor] {});
        };
        return own;
      }});
  {
    const Tensor a = *pool->Empty({1}, kUInt8);
    CHECK(nested == 1);
    CHECK(pool->UsedMemory() == 4096);  // the outer one: what is inside is counted once
  }
  CHECK(pool->Empty({1}, kUInt8).ok());
  CHECK(nested == 1);
  CHECK(pool->Clear().ok());
  CHECK(device.mock->live_blocks() == 0);
  const Tensor last = *pool->Empty({1}, kUInt8);
  pool.reset();  // no circle keeps it
}

TEST_CASE("any order of destruction") {
  for (int order = 0; order < 6; ++order) {
    MockDevice device;
    const std::shared_ptr<MockControl> mock = device.mock;
    std::optional<TensorPool> pool = PoolOver(device);
    Tensor live = *pool->Empty({100}, kFloat32);
    Tensor view = *pool->CreateView(live, {10}, kFloat32, 40);
    CHECK(pool->Empty({8000}, kUInt8).ok());  // cached
    device.packed = PackedAllocator();
    const auto drop = [&](int what) {
      if (what == 0) pool.reset();
      if (what == 1) live = Tensor();
      if (what == 2) view = Tensor();
    };
    constexpr int kOrders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (int i = 0; i < 3; ++i) {
      CHECK(mock->live_blocks() == 2);
      drop(kOrders[order][i]);
    }
    CHECK(mock->live_blocks() == 0);
    CHECK(mock->misuses().empty());
  }
}

TEST_CASE("over OpenCL: data is the handle, views and exports keep the offset apart") {
  const absl::StatusOr<PackedAllocator> device = Open("CL:0");
  if (!device.ok()) {
    MESSAGE("skipped: " << std::string(device.status().message()));
    return;
  }
  const TensorPool pool = *TensorPool::Make(*device);
  std::optional<Tensor> tensor = *pool.Empty({100, 4}, kInt16);
  CHECK(tensor->device() == DlDevice{DlDevice::kOpenCl, 0});
  std::vector<std::byte> bytes(800);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i % 251);
  REQUIRE(tensor->CopyIn(bytes).ok());
  const Tensor view = *pool.CreateView(*tensor, {5}, kUInt8, 133);
  CHECK(view.data() == DeviceAddress{tensor->data().value, 133});
  tensor.reset();
  std::vector<std::byte> read(5);
  REQUIRE(view.CopyOut(absl::MakeSpan(read)).ok());
  CHECK(read == std::vector<std::byte>(bytes.begin() + 133, bytes.begin() + 138));
  const Tensor imported = *FromDlpack(ToDlpack(view)->release());
  CHECK(imported.data() == view.data());
  CHECK(imported.device() == view.device());
}

TEST_CASE("an empty pool answers with errors, and copies are one pool") {
  const TensorPool none;
  CHECK(!none);
  CHECK(none.Empty({1}, kUInt8).status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK(none.CreateView(Tensor(), {1}, kUInt8).status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK(none.Clear().code() == absl::StatusCode::kFailedPrecondition);
  CHECK(none.UsedMemory() == 0);
  CHECK(none.cache() == nullptr);
  CHECK(none.page_size() == 0);
  const TensorPool a = *TensorPool::Make(*Pack(CpuAllocator()));
  const TensorPool b = a;
  CHECK(a == b);
  CHECK(b.Empty({1}, kUInt8).ok());
  CHECK(a.UsedMemory() == 4096);
}

TEST_CASE("a device whose free fails or throws does not stop tensors and pools from going") {
  MockDevice device;
  {
    const TensorPool pool = PoolOver(device, {.max_cached_bytes = 0});
    device.mock->FailNth(Member::kFree, 1, absl::InternalError("no"));
    CHECK(pool.Empty({1}, kUInt8).ok());
    device.mock->ThrowNth(Member::kFree, 1, std::make_exception_ptr(42));
    CHECK(pool.Empty({1}, kUInt8).ok());
    CHECK(pool.UsedMemory() == 0);
  }
  device.mock->ClearFailures();
}

TEST_CASE("tensors made, viewed and dropped on many threads, with Clear between") {
  const MockDevice device({.capacity_bytes = 4 << 20, .log_calls = false});
  std::optional<TensorPool> pool = PoolOver(device);
  std::atomic<bool> done{false};
  std::thread clearing([&, clear = *pool] {
    while (!done.load()) clear.Clear().IgnoreError();
  });
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, own = *pool, mark = static_cast<std::byte>(t + 1)] {
      std::vector<Tensor> held;
      for (int i = 0; i < 2000; ++i) {
        absl::StatusOr<Tensor> tensor = own.Empty({i % 3 == 0 ? 100 : 9000}, kUInt8);
        if (!tensor.ok()) {
          if (tensor.status().code() != absl::StatusCode::kResourceExhausted) ++wrong;
          held.clear();
          continue;
        }
        const std::vector<std::byte> bytes(tensor->nbytes(), mark);
        if (!tensor->CopyIn(bytes).ok()) ++wrong;
        held.push_back(i % 2 == 0 ? *tensor : *own.CreateView(*tensor, {50}, kUInt8, 50));
        if (held.size() > 8) {
          const Tensor& oldest = held.front();
          std::vector<std::byte> read(oldest.nbytes());
          if (!oldest.CopyOut(absl::MakeSpan(read)).ok()) ++wrong;
          for (const std::byte byte : read) wrong += byte != mark;
          held.erase(held.begin());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  done = true;
  clearing.join();
  CHECK(wrong == 0);
  CHECK(pool->cache()->stats().in_use_bytes == 0);
  pool.reset();
  CHECK(device.mock->live_blocks() == 0);
  CHECK(device.mock->misuses().empty());
}

}  // namespace
}  // namespace packalloc
