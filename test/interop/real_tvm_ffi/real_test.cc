// Objects and tensors of the real TVM-FFI, made by its C++ headers and by its library.
#include <doctest/doctest.h>
#include <tvm/ffi/c_api.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "packalloc/backends/cpu.h"
#include "packalloc/backends/mock.h"
#include "packalloc/interop/tvm_ffi.h"
#include "packalloc/packed_allocator.h"
#include "packalloc/tensor/tensor_pool.h"
#include "test/interop/installed_objects.h"

#ifdef HAVE_ROUND_TRIP
extern "C" int RoundTrip(int count);
#endif

namespace packalloc {
namespace {

namespace ffi = tvm::ffi;

// With whether libtvm_ffi.so and its headers use it.
struct Probed : Installed {
  explicit Probed(const TvmFfiObjectOptions& options = {}) : Installed(options), live(Probe(objects)) {}
  static bool Probe(const TvmFfiObjectAllocator& objects) {
    const absl::StatusOr<bool> probe = objects.Probe();
    REQUIRE(probe.ok());
    return *probe;
  }
  const bool live;
};

TEST_CASE("whether this release asks the allocator for its objects") {
  Probed s;
  TVMFFIVersion version{};
  TVMFFIGetVersion(&version);
  const std::string found =
      absl::StrCat("TVM-FFI ", version.major, ".", version.minor, ".", version.patch,
                   s.live ? " asks the allocator for its objects" : " makes its objects without asking the allocator");
  MESSAGE(found);
  if (TVM_FFI_MUST_BE_LIVE) {
    REQUIRE(s.live);
    CHECK(s.objects.stats().allocations >= 1);
  }
}

#ifdef HAVE_ROUND_TRIP
TEST_CASE("in C: each object is deleted once, whatever release it is") {
  Probed s;
  const std::uint64_t before = s.objects.stats().allocations;
  CHECK(RoundTrip(1000) == 1000);
  CHECK(s.objects.stats().allocations == before + 1000);
}
#endif

TEST_CASE("strings, arrays, maps and functions, made and dropped") {
  Probed s;
  const std::uint64_t before = s.objects.stats().allocations;
  {
    const ffi::String text("longer than what a String keeps in itself");
    ffi::Array<ffi::String> array;
    for (int i = 0; i < 1000; ++i) array.push_back(ffi::String("string number " + std::to_string(i)));
    ffi::Map<ffi::String, ffi::Any> map;
    for (int i = 0; i < 300; ++i) map.Set(array[static_cast<std::size_t>(i)], array);
    const ffi::Function add = ffi::Function::FromTyped([array](int a, int b) -> int { return a + b; });
    CHECK(add(1, 2).cast<int>() == 3);
    CHECK(map.size() == 300);
    CHECK(std::string(array[999]) == "string number 999");
    const ffi::Array<ffi::Any> large(std::vector<ffi::Any>(10000, ffi::Any(text)));  // an allocation of its own
    CHECK(large.size() == 10000);
    if (s.live) {
      const TvmFfiObjectStats stats = s.objects.stats();
      CHECK(stats.allocations >= before + 1000 + 4);
      CHECK(stats.live >= 1004);
      CHECK(stats.malloc_allocations == 0);
      const std::string report = s.objects.LeakReport();
      CAPTURE(report);
      CHECK(report.find("of type 65 (ffi.String)") != std::string::npos);
      CHECK(report.find("of type 68 (ffi.Function)") != std::string::npos);
    }
  }
  CHECK((s.objects.stats().allocations > before) == s.live);
}

TEST_CASE("errors, thrown and raised") {
  Probed s;
  const ffi::Function fails = ffi::Function::FromTyped([](int) -> int {
    TVM_FFI_THROW(ValueError) << "not this one";
    return 0;
  });
  for (int i = 0; i < 100; ++i) CHECK_THROWS_AS(fails(i), ffi::Error);
}

TEST_CASE("objects of the library made on some threads and dropped on others") {
  Probed s;
  constexpr int kThreads = 4;
  std::vector<ffi::Array<ffi::String>> made(kThreads);
  const auto on_each = [](auto&& work) {
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < kThreads; ++t) threads.emplace_back([&work, t] { work(t); });
    for (std::thread& thread : threads) thread.join();
  };
  on_each([&](std::size_t t) {
    for (int i = 0; i < 2000; ++i) made[t].push_back(ffi::String("a string of thread " + std::to_string(t)));
  });
  if (s.live) CHECK(s.objects.stats().live >= kThreads * 2000);
  on_each([&](std::size_t t) { made[(t + 1) % kThreads] = ffi::Array<ffi::String>(); });
}

TEST_CASE("objects outlive the allocator's time") {
  std::optional<ffi::Array<ffi::String>> array;
  TvmFfiObjectAllocator objects;
  {
    const auto installed = InstallTvmFfiObjectAllocator(*Pack(CpuAllocator()));
    REQUIRE(installed.ok());
    objects = *installed;
    array.emplace({ffi::String("made while it was installed")});
    REQUIRE(objects.Uninstall().ok());
  }
  array->push_back(ffi::String("made after it was uninstalled"));
  CHECK(array->size() == 2);
  array.reset();
  CHECK(objects.stats().live == 0);
}

TEST_CASE("memory runs out: malloc goes on") {
  Probed s;
  s.mock->FailAll(Member::kAlloc, absl::ResourceExhaustedError("full"));
  {
    ffi::Array<ffi::String> array;
    for (int i = 0; i < 5000; ++i) array.push_back(ffi::String("string number " + std::to_string(i)));
    CHECK(array.size() == 5000);
    CHECK((s.objects.stats().malloc_allocations > 0) == s.live);
  }
  s.mock->ClearFailures();
}

TEST_CASE("memory runs out, without malloc: C gets NULL and the raised error") {
  Probed s({.malloc_fallback = false});
  s.mock->FailAll(Member::kAlloc, absl::ResourceExhaustedError("full"));
  TVMFFICustomAllocator* allocator = TVMFFIGetCustomAllocator();
  CHECK(allocator->allocate(100000, 8, kTVMFFIObject, allocator->context) == nullptr);
  TVMFFIObjectHandle raised = nullptr;
  TVMFFIErrorMoveFromRaised(&raised);
  REQUIRE(raised != nullptr);
  const TVMFFIErrorCell& error = *TVMFFIErrorGetCellPtr(raised);
  CHECK(std::string(error.kind.data, error.kind.size) == "MemoryError");
  CHECK(std::string(error.message.data, error.message.size).find("100000 bytes") != std::string::npos);
  CHECK(TVMFFIObjectDecRef(raised) == 0);
  s.mock->ClearFailures();
}

TEST_CASE("memory runs out, without malloc: C++ gets std::bad_alloc by option, and C behind it an error code") {
  Probed s({.malloc_fallback = false, .out_of_memory = TvmFfiOutOfMemory::kThrowBadAlloc});
  s.mock->FailAll(Member::kAlloc, absl::ResourceExhaustedError("full"));
  if (s.live) {
    const std::string large(100000, 'x');
    CHECK_THROWS_AS(ffi::String{large}, std::bad_alloc);
    const std::vector<ffi::Any> elements(10000);
    CHECK_THROWS_AS((ffi::Array<ffi::Any>(elements.begin(), elements.end())), std::bad_alloc);
  }
  s.mock->ClearFailures();
  ffi::String works(std::string(100000, 'x'));
  CHECK(works.size() == 100000);
}

TEST_CASE("tensors from the environment are the pool's") {
  const TensorPool pool = *TensorPool::Make(*Pack(CpuAllocator()));
  const auto hook = InstallTvmFfiTensorAllocator(pool);
  REQUIRE_MESSAGE(hook.ok(), hook.status().ToString());
  {
    ffi::Tensor tensor =
        ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, {3, 4}, DLDataType{kDLFloat, 32, 1}, DLDevice{kDLCPU, 0});
    CHECK(tensor.ndim() == 2);
    CHECK(tensor.shape()[1] == 4);
    CHECK(tensor.strides()[0] == 4);
    CHECK(reinterpret_cast<std::uintptr_t>(tensor.data_ptr()) % 256 == 0);
    std::memset(tensor.data_ptr(), 1, 48);
    CHECK(pool.cache()->stats().in_use_bytes == 4096);
    std::thread([moved = std::move(tensor)] {}).join();
  }
  CHECK(pool.cache()->stats().in_use_bytes == 0);
  CHECK_THROWS_AS(
      ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, {3, 4}, DLDataType{kDLFloat, 32, 1}, DLDevice{kDLCUDA, 0}),
      ffi::Error);
  CHECK(hook->Uninstall().ok());
  CHECK_THROWS_AS(
      ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, {3}, DLDataType{kDLFloat, 32, 1}, DLDevice{kDLCPU, 0}),
      ffi::Error);
}

// Objects that are there until the process has ended.
std::optional<ffi::Array<ffi::String>> at_exit;  // NOLINT(cert-err58-cpp)

TEST_CASE("objects may live until the process exits") {
  const auto installed = InstallTvmFfiObjectAllocator(*Pack(CpuAllocator()));
  REQUIRE(installed.ok());
  at_exit.emplace({ffi::String("dropped by a static object's destructor")});
  const ffi::Function global = ffi::Function::FromTyped([](int i) { return i; });
  ffi::Function::SetGlobal("packalloc.test.kept", global, /*override=*/true);
}

}  // namespace
}  // namespace packalloc
