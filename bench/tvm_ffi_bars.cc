#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdlib>
#include <thread>

#include "absl/status/statusor.h"
#include "bench/bars.h"
#include "bench/measure.h"
#include "lib/interop/object_allocator.h"
#include "packalloc/backends/cpu.h"
#include "packalloc/packed_allocator.h"

namespace packalloc::bench {
namespace {

constexpr std::size_t kPairsPerRound = 100000;
constexpr std::size_t kBody = 64;  // bytes of a common object; 48 to 120 is usual

// As an object's maker and its deleter call them.
void Objects(tvm_ffi_abi::CustomAllocator& from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    void* body = from.allocate(kBody, alignof(void*), 64, from.context);
    if (body == nullptr) std::abort();
    benchmark::DoNotOptimize(body);
    static_cast<tvm_ffi_abi::ObjectAllocHeader*>(body)[-1].delete_space(body);
  }
}

// TVM-FFI's own default: a block of malloc with 16 bytes before the body.
void DeleteSpace(void* body) { std::free(static_cast<char*>(body) - 16); }
void* Allocate(std::size_t size, std::size_t /*alignment*/, std::int32_t /*type_index*/, void* /*context*/) {
  char* block = static_cast<char*>(std::malloc(16 + size));
  if (block == nullptr) std::abort();
  reinterpret_cast<tvm_ffi_abi::ObjectAllocHeader*>(block + 8)->delete_space = &DeleteSpace;
  return block + 16;
}

}  // namespace

Bar TvmFfiObjectOverMalloc() {
  return {
      "tvm_ffi_object_over_malloc", "a TVM-FFI object of 64 bytes, made and dropped, over its default on malloc", 1.0,
      Bar::Kind::kAtMost, []() -> absl::StatusOr<double> {
        const absl::StatusOr<internal::ObjectAllocator*> objects =
            internal::ObjectAllocator::Make(*Pack(CpuAllocator()), {}, [](const char*, const char*) { std::abort(); });
        if (!objects.ok()) return objects.status();
        std::thread([] {}).join();  // malloc is quicker in a process that never had a thread
        tvm_ffi_abi::CustomAllocator by_default{&Allocate, nullptr};
        return MedianRatio(
            {}, [&] { Objects(*(*objects)->entry(), kPairsPerRound); }, [&] { Objects(by_default, kPairsPerRound); });
      }};
}

}  // namespace packalloc::bench
