// The CUDA backend on the strict fake driver: kinds of memory, contexts, streams, staging, captures.
#include "packalloc/backends/cuda.h"

#include <cuda.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>

#include "packalloc/layers/lru.h"
#include "packalloc/packed_allocator.h"
#include "test/backends/cuda_fake.h"
#include "test/smaps.h"

namespace cuda_test {
namespace {

using packalloc::BufferSpec;
using packalloc::CudaMemory;
using packalloc::CudaNative;
using packalloc::CudaStats;

CudaStats Stats(const Allocator<CudaBuf>& record) { return packalloc::Find<CudaNative>(record)->stats(); }

// Adds 1 to each byte of a buffer, on the record's stream.
void AddOne(const Allocator<CudaBuf>& record, const CudaBuf& buf) {
  const auto native = packalloc::Find<CudaNative>(record);
  static std::size_t nbytes;  // kernels of one test have one size
  nbytes = buf.nbytes;
  static std::uint64_t address;
  address = buf.ptr;
  const fake_cuda_range range{buf.ptr, buf.nbytes, 1};
  REQUIRE(cuCtxPushCurrent(native->context()) == CUDA_SUCCESS);
  const int launched = fake_cuda_launch(
      native->stream(),
      [](fake_cuda_kernel* kernel, void*) {
        std::vector<unsigned char> bytes(nbytes);
        fake_cuda_kernel_read(kernel, bytes.data(), address, nbytes);
        for (unsigned char& byte : bytes) ++byte;
        fake_cuda_kernel_write(kernel, address, bytes.data(), nbytes);
      },
      nullptr, &range, 1);
  CUcontext popped = nullptr;
  REQUIRE(cuCtxPopCurrent(&popped) == CUDA_SUCCESS);
  REQUIRE(launched == CUDA_SUCCESS);
}

TEST_CASE("each kind of memory is what its spec asks for") {
  UnderEachSchedule(1, [](fake_cuda_schedule) {
    const Allocator<CudaBuf> cuda = Open();
    CHECK(cuda.traits.name == "CUDA:0");
    struct Case {
      BufferSpec spec;
      CudaMemory kind;
      fake_cuda_object object;
    };
    for (const Case& c : {Case{{}, CudaMemory::kDevice, FAKE_CUDA_DEVICE_MEMORY},
                          Case{{.uncached = true}, CudaMemory::kDevice, FAKE_CUDA_DEVICE_MEMORY},
                          Case{{.host = true}, CudaMemory::kPinned, FAKE_CUDA_PINNED_MEMORY},
                          Case{{.cpu_access = true, .host = true}, CudaMemory::kPinned, FAKE_CUDA_PINNED_MEMORY},
                          Case{{.uncached = true, .host = true}, CudaMemory::kPinned, FAKE_CUDA_PINNED_MEMORY},
                          Case{{.cpu_access = true}, CudaMemory::kManaged, FAKE_CUDA_MANAGED_MEMORY}}) {
      INFO(ToString(c.spec));
      const std::vector<std::byte> in = Pattern(1000);
      const CudaBuf buf = Must(cuda.alloc(1000, c.spec));
      CHECK(buf.kind == c.kind);
      CHECK(fake_cuda_live(c.object) == 1);
      Must(cuda.copyin(buf, in));
      CHECK(Read(cuda, buf) == in);
      const absl::StatusOr<std::byte*> host = cuda.host_ptr(buf);
      if (c.kind == CudaMemory::kDevice) {
        CHECK(host.status().code() == absl::StatusCode::kFailedPrecondition);
      } else {
        Must(cuda.synchronize());
        CHECK(std::equal(in.begin(), in.end(), Must(host)));
        const CudaBuf view = Must(cuda.offset(buf, 10, 33));
        CHECK(Must(cuda.host_ptr(view)) == *host + 33);
      }
      Must(cuda.free(buf, 1000, c.spec));
      CHECK(fake_cuda_live(c.object) == 0);
    }
    const BufferSpec refused{.uncached = true, .cpu_access = true};
    CHECK(cuda.alloc(64, refused).status().code() == absl::StatusCode::kInvalidArgument);
  });
}

TEST_CASE("external memory is used where it is, never freed, and nothing else is taken for it") {
  UnderEachSchedule(2, [](fake_cuda_schedule) {
    const Allocator<CudaBuf> cuda = Open();
    const Allocator<CudaBuf> other = Open({.device = 1});
    const CudaBuf owned = Must(cuda.alloc(4096, {}));
    const CudaBuf pinned = Must(cuda.alloc(4096, {.host = true}));
    const CudaBuf elsewhere = Must(other.alloc(4096, {}));
    const std::vector<std::byte> in = Pattern(1024);
    for (const CudaBuf& memory : {owned, pinned}) {
      const BufferSpec spec{.host = memory.kind == CudaMemory::kPinned, .external_ptr = memory.ptr + 1024};
      const CudaBuf wrapped = Must(cuda.alloc(1024, spec));
      CHECK(wrapped.ptr == memory.ptr + 1024);
      Must(cuda.copyin(wrapped, in));
      Must(cuda.free(wrapped, 1024, spec));
      CHECK(Read(cuda, Must(cuda.offset(memory, 1024, 1024))) == in);
    }
    std::vector<std::byte> pageable(64);
    const auto pageable_ptr = reinterpret_cast<std::uintptr_t>(pageable.data());
    const auto refused = [&](std::size_t nbytes, const BufferSpec& spec) {
      const absl::Status status = cuda.alloc(nbytes, spec).status();
      CHECK_MESSAGE(status.code() == absl::StatusCode::kInvalidArgument, status.ToString());
    };
    refused(64, {.external_ptr = pageable_ptr});
    refused(64, {.host = true, .external_ptr = pageable_ptr});
    refused(64, {.external_ptr = pinned.ptr});
    refused(64, {.host = true, .external_ptr = owned.ptr});
    refused(64, {.cpu_access = true, .external_ptr = owned.ptr});
    refused(64, {.external_ptr = elsewhere.ptr});
    refused(4096, {.external_ptr = owned.ptr + 1});
    refused(64, {.uncached = true, .host = true, .external_ptr = pinned.ptr});
    Must(cuda.free(owned, 4096, {}));
    Must(cuda.free(pinned, 4096, {.host = true}));
    Must(other.free(elsewhere, 4096, {}));
  });
}

TEST_CASE("once free of external memory has returned, the memory is its owner's alone") {
  UnderEachSchedule(1, [](fake_cuda_schedule) {
    const Allocator<CudaBuf> cuda = Open();
    const CudaBuf source = Must(cuda.alloc(4096, {}));
    Must(cuda.copyin(source, Pattern(4096)));
    CUcontext context = packalloc::Find<CudaNative>(cuda)->context();
    REQUIRE(cuCtxPushCurrent(context) == CUDA_SUCCESS);
    CUdeviceptr mine = 0;
    REQUIRE(cuMemAlloc(&mine, 4096) == CUDA_SUCCESS);
    void* host = nullptr;
    REQUIRE(cuMemHostAlloc(&host, 4096, 0) == CUDA_SUCCESS);
    const BufferSpec specs[] = {{.external_ptr = mine},
                                {.host = true, .external_ptr = reinterpret_cast<std::uintptr_t>(host)}};
    for (const BufferSpec& spec : specs) {
      const CudaBuf wrapped = Must(cuda.alloc(4096, spec));
      Must(cuda.transfer(wrapped, source, 4096));
      Must(cuda.free(wrapped, 4096, spec));
    }
    CHECK(std::memcmp(host, Pattern(4096).data(), 4096) == 0);
    CHECK(cuMemFree(mine) == CUDA_SUCCESS);  // with work pending on it the fake would complain
    CHECK(cuMemFreeHost(host) == CUDA_SUCCESS);
    REQUIRE(cuCtxPopCurrent(&context) == CUDA_SUCCESS);
    Must(cuda.free(source, 4096, {}));
  });
}

TEST_CASE("the caller's current context stays, on every thread, also on errors") {
  UnderEachSchedule(2, [](fake_cuda_schedule) {
    CUcontext mine = nullptr;
    REQUIRE(cuDevicePrimaryCtxRetain(&mine, 1) == CUDA_SUCCESS);
    const Allocator<CudaBuf> cuda = Open();
    const auto use = [&](CUcontext wanted) {
      const auto same = [&] {
        CUcontext now = nullptr;
        return cuCtxGetCurrent(&now) == CUDA_SUCCESS && now == wanted;
      };
      for (const int failing : {0, 1}) {
        if (failing != 0) {
          for (const char* call : {"cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemcpyDtoDAsync_v2"}) {
            fake_cuda_fail(call, 0, CUDA_ERROR_INVALID_VALUE);
          }
        }
        std::vector<std::byte> bytes(256);
        const CudaBuf buf = Must(cuda.alloc(256, {.zero = true}));
        CHECK(same());
        CHECK(cuda.copyin(buf, bytes).ok() == (failing == 0));
        CHECK(same());
        CHECK(cuda.copyout(absl::MakeSpan(bytes), buf).ok() == (failing == 0));
        CHECK(same());
        CHECK(cuda.transfer(buf, Must(cuda.offset(buf, 100, 100)), 100).ok() == (failing == 0));
        CHECK(same());
        Must(cuda.synchronize());
        Must(cuda.memory_info());
        CHECK(same());
        Must(cuda.free(buf, 256, {}));
        CHECK(same());
        fake_cuda_clear_failures();
      }
    };
    use(nullptr);
    REQUIRE(cuCtxPushCurrent(mine) == CUDA_SUCCESS);
    use(mine);
    std::thread([&] { use(nullptr); }).join();
    CUcontext popped = nullptr;
    REQUIRE(cuCtxPopCurrent(&popped) == CUDA_SUCCESS);
    REQUIRE(cuDevicePrimaryCtxRelease(1) == CUDA_SUCCESS);
  });
}

TEST_CASE("one retention of a device's primary context, whatever the number of records") {
  const Fake fake(FAKE_CUDA_LAZY, 2);
  {
    const Allocator<CudaBuf> one = Open();
    const Allocator<CudaBuf> two = Open();
    const Allocator<CudaBuf> other = Open({.device = 1});
    CHECK(packalloc::Find<CudaNative>(one)->context() == packalloc::Find<CudaNative>(two)->context());
    CHECK(packalloc::Find<CudaNative>(one)->context() != packalloc::Find<CudaNative>(other)->context());
    CHECK(packalloc::Find<CudaNative>(one)->stream() != packalloc::Find<CudaNative>(two)->stream());
    CHECK(fake_cuda_live(FAKE_CUDA_CONTEXT) == 2);
    CHECK(fake_cuda_calls("cuDevicePrimaryCtxRetain") - fake_cuda_calls("cuDevicePrimaryCtxRelease_v2") == 2);
  }
  CHECK(fake_cuda_live(FAKE_CUDA_CONTEXT) == 0);
}

TEST_CASE("a caller's context and stream are used, and left alone") {
  UnderEachSchedule(2, [](fake_cuda_schedule) {
    CUcontext context = nullptr;
    REQUIRE(cuDevicePrimaryCtxRetain(&context, 1) == CUDA_SUCCESS);
    REQUIRE(cuCtxPushCurrent(context) == CUDA_SUCCESS);
    CUstream stream = nullptr;
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    CUcontext popped = nullptr;
    REQUIRE(cuCtxPopCurrent(&popped) == CUDA_SUCCESS);
    {
      const Allocator<CudaBuf> cuda = Open({.device = 1, .context = context, .stream = stream});
      const auto native = packalloc::Find<CudaNative>(cuda);
      CHECK(native->context() == context);
      CHECK(native->stream() == stream);
      CHECK(native->device() == 1);
      const CudaBuf buf = Must(cuda.alloc(5000, {}));
      const std::vector<std::byte> in = Pattern(5000);
      Must(cuda.copyin(buf, in));
      AddOne(cuda, buf);
      std::vector<std::byte> wanted = in;
      for (std::byte& byte : wanted) byte = static_cast<std::byte>(static_cast<int>(byte) + 1);
      CHECK(Read(cuda, buf) == wanted);
      Must(cuda.free(buf, 5000, {}));
    }
    CHECK(CudaAllocator({.device = 0, .context = context}).status().code() == absl::StatusCode::kInvalidArgument);
    CHECK(fake_cuda_live(FAKE_CUDA_STREAM) == 1);
    REQUIRE(cuCtxPushCurrent(context) == CUDA_SUCCESS);
    REQUIRE(cuStreamDestroy(stream) == CUDA_SUCCESS);
    REQUIRE(cuCtxPopCurrent(&popped) == CUDA_SUCCESS);
    REQUIRE(cuDevicePrimaryCtxRelease(1) == CUDA_SUCCESS);
  });
}

TEST_CASE("options that make no sense are refused, and a device that is not there is named") {
  const Fake fake(FAKE_CUDA_LAZY, 2);
  const auto code = [](const CudaOptions& options) { return CudaAllocator(options).status().code(); };
  CHECK(code({.staging_slot_bytes = 0}) == absl::StatusCode::kInvalidArgument);
  CHECK(code({.staging_slot_bytes = SIZE_MAX}) == absl::StatusCode::kInvalidArgument);
  CHECK(code({.staging_slots = 0}) == absl::StatusCode::kInvalidArgument);
  CHECK(code({.stream = CU_STREAM_PER_THREAD}) == absl::StatusCode::kInvalidArgument);
  CHECK(code({.pool_release_threshold = 1}) == absl::StatusCode::kInvalidArgument);
  CHECK(code({.device = -1}) == absl::StatusCode::kNotFound);
  const absl::Status seven = CudaAllocator({.device = 7}).status();
  CHECK(seven.code() == absl::StatusCode::kNotFound);
  CHECK(seven.message().find("2 devices") != std::string::npos);
}

TEST_CASE("the staging ring is bounded, its slots are made when needed, and its bytes are told") {
  UnderEachSchedule(1, [](fake_cuda_schedule) {
    const Allocator<CudaBuf> cuda = Open({.staging_slot_bytes = 4096, .staging_slots = 3});
    CHECK(Stats(cuda).staging_slots == 0);
    CHECK(Stats(cuda).staging_is_pinned);
    const CudaBuf buf = Must(cuda.alloc(100'000, {}));
    for (const std::size_t nbytes : {1u, 4095u, 4096u, 4097u, 50'000u, 100'000u}) {
      std::vector<std::byte> in = Pattern(nbytes, static_cast<std::uint32_t>(nbytes));
      const std::vector<std::byte> copy = in;
      Must(cuda.copyin(buf, in));
      std::fill(in.begin(), in.end(), std::byte{0xEE});  // consumed: nobody sees this
      CHECK(Read(cuda, Must(cuda.offset(buf, nbytes, 0))) == copy);
      CHECK(Stats(cuda).staging_slots <= 3);
      CHECK(fake_cuda_live(FAKE_CUDA_REGISTERED_MEMORY) == Stats(cuda).staging_slots);
    }
    CHECK(Stats(cuda).staging_bytes == Stats(cuda).staging_slots * 4096);
    Must(cuda.free(buf, 100'000, {}));
  });
}

TEST_CASE("large slots of the staging ring lie in huge pages") {
  const Fake fake;
  const Allocator<CudaBuf> cuda = Open({.staging_slot_bytes = 4 << 20});
  const CudaBuf buf = Must(cuda.alloc(1000, {}));
  Must(cuda.copyin(buf, Pattern(1000)));
  // No other mapping of that size is kept from forked children (MADV_DONTFORK).
  const auto is_slot = [](std::uintptr_t first, std::uintptr_t last, const std::string& flags) {
    return last - first >= 4 << 20 && flags.find(" dc ") != std::string::npos;
  };
  CHECK(packalloc::AsksForHugePages(is_slot).value_or(true));
  Must(cuda.free(buf, 1000, {}));
}

TEST_CASE("where nothing can be pinned, copyin works from pageable memory and says so") {
  UnderEachSchedule(1, [](fake_cuda_schedule) {
    fake_cuda_fail("cuMemHostRegister_v2", 0, CUDA_ERROR_OUT_OF_MEMORY);
    const Allocator<CudaBuf> cuda = Open();
    const CudaBuf buf = Must(cuda.alloc(30'000, {}));
    std::vector<std::byte> in = Pattern(30'000);
    const std::vector<std::byte> copy = in;
    Must(cuda.copyin(buf, in));
    std::fill(in.begin(), in.end(), std::byte{0xEE});
    CHECK(Read(cuda, buf) == copy);
    CHECK_FALSE(Stats(cuda).staging_is_pinned);
    CHECK(Stats(cuda).staging_bytes == 0);
    Must(cuda.free(buf, 30'000, {}));
  });
  // Some slots and no more: those are used.
  UnderEachSchedule(1, [](fake_cuda_schedule) {
    const Allocator<CudaBuf> cuda = Open({.staging_slot_bytes = 4096});
    fake_cuda_fail("cuMemHostRegister_v2", 3, CUDA_ERROR_OUT_OF_MEMORY);
    const CudaBuf buf = Must(cuda.alloc(100'000, {}));
    const std::vector<std::byte> in = Pattern(100'000);
    Must(cuda.copyin(buf, in));
    CHECK(Read(cuda, buf) == in);
    CHECK(Stats(cuda).staging_is_pinned);
    CHECK(Stats(cuda).staging_slots <= 2);
    Must(cuda.free(buf, 100'000, {}));
  });
}

TEST_CASE("pinned memory: the driver sees the size asked for, and out of it is an error, not other memory") {
  const Fake fake;
  fake_cuda_set_pinned_capacity(std::size_t{64} << 20);
  const Allocator<CudaBuf> cuda = Open();
  const BufferSpec pinned{.host = true};
  const CudaBuf buf = Must(cuda.alloc(std::size_t{33} << 20, pinned));
  CHECK(fake_cuda_pinned_bytes() >= std::size_t{33} << 20);
  CHECK(fake_cuda_pinned_bytes() <= (std::size_t{33} << 20) + 4096);
  CHECK(Stats(cuda).pinned_bytes == fake_cuda_pinned_bytes());
  CHECK(Stats(cuda).pinned_buffers == 1);
  CHECK(cuda.alloc(std::size_t{33} << 20, pinned).status().code() == absl::StatusCode::kResourceExhausted);
  Must(cuda.free(buf, std::size_t{33} << 20, pinned));
  CHECK(Stats(cuda).pinned_bytes == 0);
  CHECK(cuda.alloc(std::size_t{65} << 20, pinned).status().code() == absl::StatusCode::kResourceExhausted);
  Must(cuda.free(Must(cuda.alloc(std::size_t{64} << 20, pinned)), std::size_t{64} << 20, pinned));
}

TEST_CASE("alignment beyond the driver's own is kept, and the whole block is given back") {
  const Fake fake;
  const Allocator<CudaBuf> cuda = Open();
  for (const bool host : {false, true}) {
    for (const std::size_t alignment : {512u, 4096u, 1u << 21}) {
      const BufferSpec spec{.host = host, .zero = true, .alignment = alignment};
      std::vector<CudaBuf> bufs;
      for (int i = 0; i < 5; ++i) {
        bufs.push_back(Must(cuda.alloc(300, spec)));
        CHECK(bufs.back().ptr % alignment == 0);
        CHECK(Read(cuda, bufs.back()) == std::vector<std::byte>(300));
      }
      for (const CudaBuf& buf : bufs) Must(cuda.free(buf, 300, spec));
      CHECK(Stats(cuda).pinned_bytes == 0);
    }
  }
}

TEST_CASE("work of a kernel is ordered between copies, and free waits for it") {
  UnderEachSchedule(1, [](fake_cuda_schedule) {
    for (const bool own : {true, false}) {
      CudaOptions options;
      if (!own) options.stream = nullptr;
      const Allocator<CudaBuf> cuda = Open(options);
      const CudaBuf buf = Must(cuda.alloc(3000, {.zero = true}));
      for (int i = 1; i <= 5; ++i) {
        AddOne(cuda, buf);
        CHECK(Read(cuda, buf) == std::vector<std::byte>(3000, static_cast<std::byte>(i)));
      }
      AddOne(cuda, buf);
      Must(cuda.free(buf, 3000, {}));  // still pending
    }
  });
}

TEST_CASE("stream-ordered allocation: neither alloc nor free waits, and the pool gives back when memory is short") {
  UnderEachSchedule(1, [](fake_cuda_schedule) {
    fake_cuda_set_capacity(0, 10'000'000);
    const Allocator<CudaBuf> cuda =
        Open({.allocation = packalloc::CudaAllocation::kStreamOrdered, .pool_release_threshold = UINT64_MAX});
    for (int i = 0; i < 3; ++i) {
      const std::vector<std::byte> in = Pattern(1'000'000);
      const CudaBuf buf = Must(cuda.alloc(1'000'000, {}));
      Must(cuda.copyin(buf, in));
      const std::uint64_t waits = fake_cuda_calls("cuStreamSynchronize");
      Must(cuda.free(buf, 1'000'000, {}));
      CHECK(fake_cuda_calls("cuStreamSynchronize") == waits);
    }
    Must(cuda.free(Must(cuda.alloc(9'900'000, {})), 9'900'000, {}));
    CHECK(cuda.alloc(11'000'000, {}).status().code() == absl::StatusCode::kResourceExhausted);
  });
}

TEST_CASE("during a capture what cannot be captured is refused, and the capture goes on") {
  UnderEachSchedule(1, [](fake_cuda_schedule) {
    CUcontext context = nullptr;
    CUcontext popped = nullptr;
    CUstream stream = nullptr;
    REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
    REQUIRE(cuCtxPushCurrent(context) == CUDA_SUCCESS);
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    {
      packalloc::PackedAllocator packed = Must(packalloc::Pack(Open({.stream = stream})));
      packed = Must(packalloc::Lru(packed));
      const Allocator<CudaBuf> cuda = *packed.unpack<CudaBuf>();
      const Allocator<CudaBuf> bare = Open({.stream = stream});
      const Allocator<CudaBuf> elsewhere = Open();
      std::vector<std::byte> bytes = Pattern(4000);
      const CudaBuf a = Must(bare.alloc(4000, {}));
      const CudaBuf b = Must(bare.alloc(4000, {.zero = true}));
      const CudaBuf c = Must(bare.alloc(4000, {}));
      const CudaBuf pinned = Must(bare.alloc(4000, {.host = true}));
      const CudaBuf foreign = Must(elsewhere.alloc(4000, {}));
      const BufferSpec external{.host = true, .external_ptr = pinned.ptr};
      const CudaBuf wrapped = Must(bare.alloc(4000, external));
      Must(bare.copyin(a, bytes));
      Must(packed.free(Must(packed.alloc(2000)), 2000));  // lies in the cache
      Must(bare.synchronize());

      REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
      const auto refused = [](const absl::Status& status) {
        CHECK_MESSAGE(status.code() == absl::StatusCode::kFailedPrecondition, status.ToString());
      };
      refused(bare.copyin(a, bytes));
      refused(bare.copyin(pinned, bytes));
      refused(bare.copyout(absl::MakeSpan(bytes), a));
      for (const BufferSpec& spec : {BufferSpec{}, BufferSpec{.host = true}, BufferSpec{.cpu_access = true}}) {
        refused(bare.alloc(64, spec).status());
      }
      refused(bare.synchronize());
      refused(bare.transfer(foreign, a, 100));
      refused(bare.transfer(a, foreign, 100));
      refused(bare.transfer(Must(bare.offset(a, 3900, 1)), a, 3900));  // would take memory of the driver
      refused(bare.free(wrapped, 4000, external));
      refused(packalloc::Find<packalloc::LruControl>(packed)->Clear());
      Must(bare.transfer(b, a, 4000));
      Must(bare.transfer(a, pinned, 10));
      Must(bare.free(c, 4000, {}));
      CHECK(Stats(bare).deferred_frees == 1);
      Must(packed.free(Must(packed.alloc(2000)), 2000));  // a hit takes nothing from the driver
      CUgraph graph = nullptr;
      REQUIRE(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
      CHECK(Read(bare, b) == std::vector<std::byte>(4000));  // captured, not run
      CUgraphExec executable = nullptr;
      REQUIRE(cuGraphInstantiateWithFlags(&executable, graph, 0) == CUDA_SUCCESS);
      REQUIRE(cuGraphLaunch(executable, stream) == CUDA_SUCCESS);
      CHECK(Read(bare, b) == bytes);
      REQUIRE(cuGraphExecDestroy(executable) == CUDA_SUCCESS);
      REQUIRE(cuGraphDestroy(graph) == CUDA_SUCCESS);
      Must(bare.synchronize());
      CHECK(Stats(bare).deferred_frees == 0);
      Must(packalloc::Find<packalloc::LruControl>(packed)->Clear());
      Must(bare.free(a, 4000, {}));
      Must(bare.free(b, 4000, {}));
      Must(bare.free(wrapped, 4000, external));
      Must(bare.free(pinned, 4000, {.host = true}));
      Must(elsewhere.free(foreign, 4000, {}));
    }
    REQUIRE(cuStreamDestroy(stream) == CUDA_SUCCESS);
    REQUIRE(cuCtxPopCurrent(&popped) == CUDA_SUCCESS);
    REQUIRE(cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS);
  });
}

TEST_CASE("the last copy of a record may go while the caller's stream is captured") {
  UnderEachSchedule(1, [](fake_cuda_schedule) {
    CUcontext context = nullptr;
    CUstream stream = nullptr;
    REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
    REQUIRE(cuCtxPushCurrent(context) == CUDA_SUCCESS);
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    absl::StatusOr<Allocator<CudaBuf>> cuda = CudaAllocator({.stream = stream});
    Must(cuda->free(Must(cuda->alloc(64, {.zero = true})), 64, {}));
    REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    cuda = absl::CancelledError();
    CUgraph graph = nullptr;
    CHECK(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
    REQUIRE(graph != nullptr);
    REQUIRE(cuGraphDestroy(graph) == CUDA_SUCCESS);
    REQUIRE(cuStreamDestroy(stream) == CUDA_SUCCESS);
    REQUIRE(cuCtxPopCurrent(&context) == CUDA_SUCCESS);
    REQUIRE(cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS);
  });
}

TEST_CASE("a full device: the error tells the bytes, the cache gives back, and nothing is stale after") {
  UnderEachSchedule(1, [](fake_cuda_schedule) {
    fake_cuda_set_capacity(0, std::size_t{10} << 20);
    const packalloc::PackedAllocator packed = Must(packalloc::Lru(Must(packalloc::Pack(Open()))));
    const auto control = packalloc::Find<packalloc::LruControl>(packed);
    constexpr std::size_t kBlock = std::size_t{1} << 20;
    std::vector<packalloc::AnyBuf> bufs;
    absl::StatusOr<packalloc::AnyBuf> buf;
    while ((buf = packed.alloc(kBlock)).ok()) bufs.push_back(*buf);
    CHECK(bufs.size() == 10);
    CHECK(buf.status().code() == absl::StatusCode::kResourceExhausted);
    CHECK(buf.status().message().find("1048576") != std::string::npos);
    for (const packalloc::AnyBuf& b : bufs) Must(packed.free(b, kBlock));
    CHECK(control->stats().cached_bytes == 10 * kBlock);
    const packalloc::AnyBuf large = Must(packed.alloc(8 * kBlock));
    const std::vector<std::byte> in = Pattern(8 * kBlock);
    Must(packed.copyin(large, in));
    std::vector<std::byte> out(in.size());
    Must(packed.copyout(absl::MakeSpan(out), large));
    CHECK(in == out);
    CHECK(control->stats().flushes >= 1);
    CHECK(packed.alloc(20 * kBlock).status().code() == absl::StatusCode::kResourceExhausted);
    Must(packed.synchronize());  // no stale error
    Must(packed.free(large, 8 * kBlock));
  });
}

}  // namespace
}  // namespace cuda_test
