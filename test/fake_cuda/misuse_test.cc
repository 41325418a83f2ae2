// Each seeded misuse is reported, as what it is and once, under every schedule.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <thread>

#include "test/fake_cuda/fixture.h"

using namespace fake_cuda_test;

extern "C" CUresult cuCtxCreate_v2(CUcontext* context, unsigned int flags, CUdevice device);

namespace {

// The worker may be reading the byte: a data race on purpose, which ThreadSanitizer is not to find here.
__attribute__((no_sanitize("thread"))) void Spoil(unsigned char* byte) {
  *byte = static_cast<unsigned char>(*byte ^ 1);
}

unsigned char* MapPages(size_t nbytes) {
  void* pages = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(pages != MAP_FAILED);
  return static_cast<unsigned char*>(pages);
}

}  // namespace

TEST_CASE("staging freed before the copy from it is known done") {
  Expect(FAKE_CUDA_PENDING_WORK, 1, [] {
    unsigned char* staging = Pinned();
    OK(cuMemcpyHtoDAsync_v2(Alloc(), staging, kBytes, NewStream()));
    OK(cuMemFreeHost(staging));
  });
}

TEST_CASE("staging filled again before the copy from it is known done") {
  Expect(FAKE_CUDA_SOURCE_CHANGED, 1, [] {
    unsigned char* staging = Pinned();
    CUstream stream = NewStream();
    OK(cuMemcpyHtoDAsync_v2(Alloc(), staging, kBytes, stream));
    Spoil(&staging[kBytes - 1]);
    OK(cuStreamSynchronize(stream));
  });
}

TEST_CASE("pageable source changed before the copy from it is known done") {
  Expect(FAKE_CUDA_SOURCE_CHANGED, 1, [] {
    std::vector<unsigned char> source = Pattern();
    CUstream stream = NewStream();
    OK(cuMemcpyHtoDAsync_v2(Alloc(), source.data(), kBytes, stream));
    Spoil(&source[0]);
    OK(cuStreamSynchronize(stream));
  });
}

TEST_CASE("pageable source unmapped before the copy from it is known done") {
  Expect(FAKE_CUDA_SOURCE_CHANGED, 1, [] {
    unsigned char* source = MapPages(kBytes);
    CUstream stream = NewStream();
    OK(cuMemcpyHtoDAsync_v2(Alloc(), source, kBytes, stream));
    munmap(source, kBytes);
    OK(cuStreamSynchronize(stream));
  });
}

TEST_CASE("registered source changed, and unregistered, before the copy from it is known done") {
  std::vector<unsigned char> source = Pattern();
  Expect(FAKE_CUDA_SOURCE_CHANGED, 1, [&] {
    OK(cuMemHostRegister_v2(source.data(), kBytes, 0));
    CUstream stream = NewStream();
    OK(cuMemcpyHtoDAsync_v2(Alloc(), source.data(), kBytes, stream));
    Spoil(&source[1]);
    OK(cuStreamSynchronize(stream));
    OK(cuMemHostUnregister(source.data()));
  });
  Expect(FAKE_CUDA_PENDING_WORK, 1, [&] {
    OK(cuMemHostRegister_v2(source.data(), kBytes, 0));
    OK(cuMemcpyHtoDAsync_v2(Alloc(), source.data(), kBytes, NewStream()));
    OK(cuMemHostUnregister(source.data()));
  });
}

TEST_CASE("a destination read before a synchronization shows 0xA5") {
  for (bool pinned : {false, true}) {
    ExpectNothing([&] {
      CUdeviceptr memory = Alloc();
      CUstream stream = NewStream();
      std::vector<unsigned char> pageable(kBytes);
      unsigned char* out = pinned ? Pinned() : pageable.data();
      OK(cuMemsetD8Async(memory, 7, kBytes, stream));
      OK(cuMemcpyDtoHAsync_v2(out, memory, kBytes, stream));
      CHECK(out[0] == 0xA5);
      CHECK(out[kBytes - 1] == 0xA5);
      OK(cuStreamSynchronize(stream));
      CHECK(out[0] == 7);
      CHECK(out[kBytes - 1] == 7);
      if (pinned) OK(cuMemFreeHost(out));
      OK(cuMemFree_v2(memory));
      OK(cuStreamDestroy_v2(stream));
    });
  }
}

TEST_CASE("a destination written, unmapped or freed before the copy to it is known done") {
  Expect(FAKE_CUDA_DESTINATION_TOUCHED, 1, [] {
    std::vector<unsigned char> out(kBytes);
    CUstream stream = NewStream();
    OK(cuMemcpyDtoHAsync_v2(out.data(), Alloc(), kBytes, stream));
    out[17] = 1;
    OK(cuStreamSynchronize(stream));
    CHECK(out[17] == 1);  // it may be somebody else's memory by now
  });
  Expect(FAKE_CUDA_DESTINATION_TOUCHED, 1, [] {
    unsigned char* out = MapPages(kBytes);
    CUstream stream = NewStream();
    OK(cuMemcpyDtoHAsync_v2(out, Alloc(), kBytes, stream));
    munmap(out, kBytes);
    OK(cuStreamSynchronize(stream));
  });
  Expect(FAKE_CUDA_PENDING_WORK, 1, [] {
    unsigned char* out = Pinned();
    OK(cuMemcpyDtoHAsync_v2(out, Alloc(), kBytes, NewStream()));
    OK(cuMemFreeHost(out));
  });
}

TEST_CASE("off by one, on either side of a copy, in a fill, behind the end") {
  std::vector<unsigned char> host(kBytes + 1);
  auto wrong = [](CUresult code) { CHECK(code == CUDA_ERROR_INVALID_VALUE); };
  Expect(FAKE_CUDA_OUT_OF_BOUNDS, 1,
         [&] { wrong(cuMemcpyHtoDAsync_v2(Alloc(), host.data(), kBytes + 1, NewStream())); });
  Expect(FAKE_CUDA_OUT_OF_BOUNDS, 1, [&] { wrong(cuMemcpyHtoDAsync_v2(Alloc() + 1, host.data(), kBytes, nullptr)); });
  Expect(FAKE_CUDA_OUT_OF_BOUNDS, 1,
         [&] { wrong(cuMemcpyDtoHAsync_v2(host.data(), Alloc() + 1, kBytes, NewStream())); });
  Expect(FAKE_CUDA_OUT_OF_BOUNDS, 1, [&] { wrong(cuMemcpyDtoH_v2(host.data(), Alloc(), kBytes + 1)); });
  Expect(FAKE_CUDA_OUT_OF_BOUNDS, 1, [&] { wrong(cuMemcpyHtoD_v2(Alloc(), host.data(), kBytes + 1)); });
  Expect(FAKE_CUDA_OUT_OF_BOUNDS, 1,
         [&] { wrong(cuMemcpyDtoDAsync_v2(Alloc(), Alloc(kBytes + 1), kBytes + 1, nullptr)); });
  Expect(FAKE_CUDA_OUT_OF_BOUNDS, 1,
         [&] { wrong(cuMemcpyDtoDAsync_v2(Alloc(kBytes + 1), Alloc(), kBytes + 1, nullptr)); });
  Expect(FAKE_CUDA_OUT_OF_BOUNDS, 1, [&] { wrong(cuMemsetD8Async(Alloc(), 0, kBytes + 1, nullptr)); });
  Expect(FAKE_CUDA_OUT_OF_BOUNDS, 1, [&] { wrong(cuMemsetD8Async(Alloc() + kBytes, 0, 1, nullptr)); });
  // A size that wraps around the address space.
  Expect(FAKE_CUDA_OUT_OF_BOUNDS, 1, [&] { wrong(cuMemsetD8Async(Alloc() + 8, 0, SIZE_MAX - 4, nullptr)); });
  // Pinned memory has an end as well.
  Expect(FAKE_CUDA_OUT_OF_BOUNDS, 1,
         [&] { wrong(cuMemcpyHtoDAsync_v2(Alloc(2 * kBytes), Pinned(), kBytes + 1, nullptr)); });
  Expect(FAKE_CUDA_OUT_OF_BOUNDS, 1, [&] { wrong(cuMemcpyDtoHAsync_v2(Pinned() + 1, Alloc(), kBytes, nullptr)); });
}

TEST_CASE("double free of everything that can be freed") {
  Expect(FAKE_CUDA_DOUBLE_FREE, 1, [] {
    CUdeviceptr memory = Alloc();
    OK(cuMemFree_v2(memory));
    CHECK(cuMemFree_v2(memory) == CUDA_ERROR_INVALID_VALUE);
  });
  Expect(FAKE_CUDA_DOUBLE_FREE, 1, [] {
    CUdeviceptr memory = 0;
    OK(cuMemAllocManaged(&memory, kBytes, CU_MEM_ATTACH_GLOBAL));
    OK(cuMemFree_v2(memory));
    CHECK(cuMemFree_v2(memory) == CUDA_ERROR_INVALID_VALUE);
  });
  Expect(FAKE_CUDA_DOUBLE_FREE, 1, [] {
    CUdeviceptr memory = 0;
    CUstream stream = NewStream();
    OK(cuMemAllocAsync(&memory, kBytes, stream));
    OK(cuMemFreeAsync(memory, stream));
    CHECK(cuMemFreeAsync(memory, stream) == CUDA_ERROR_INVALID_VALUE);
  });
  Expect(FAKE_CUDA_DOUBLE_FREE, 1, [] {
    unsigned char* pinned = Pinned();
    OK(cuMemFreeHost(pinned));
    CHECK(cuMemFreeHost(pinned) == CUDA_ERROR_INVALID_VALUE);
  });
  Expect(FAKE_CUDA_DOUBLE_FREE, 1, [] {
    CUstream stream = NewStream();
    OK(cuStreamDestroy_v2(stream));
    CHECK(cuStreamDestroy_v2(stream) == CUDA_ERROR_INVALID_HANDLE);
  });
  Expect(FAKE_CUDA_DOUBLE_FREE, 1, [] {
    CUevent event = NewEvent();
    OK(cuEventDestroy_v2(event));
    CHECK(cuEventDestroy_v2(event) == CUDA_ERROR_INVALID_HANDLE);
  });
  Expect(FAKE_CUDA_DOUBLE_FREE, 1, [] {
    CUmemPoolProps properties = {};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;  // device 0
    CUmemoryPool pool = nullptr;
    OK(cuMemPoolCreate(&pool, &properties));
    OK(cuMemPoolDestroy(pool));
    CHECK(cuMemPoolDestroy(pool) == CUDA_ERROR_INVALID_VALUE);
  });
  Expect(FAKE_CUDA_DOUBLE_FREE, 1, [] {
    OK(cuDevicePrimaryCtxRelease_v2(0));
    CHECK(cuDevicePrimaryCtxRelease_v2(0) == CUDA_ERROR_INVALID_CONTEXT);
  });
}

TEST_CASE("freed by the wrong function, in the middle, or never allocated") {
  std::vector<unsigned char> heap(kBytes);
  auto address = [](void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); };
  Expect(FAKE_CUDA_WRONG_FREE, 1, [&] { CHECK(cuMemFree_v2(Alloc() + 8) == CUDA_ERROR_INVALID_VALUE); });
  Expect(FAKE_CUDA_WRONG_FREE, 1, [&] { CHECK(cuMemFree_v2(address(Pinned())) == CUDA_ERROR_INVALID_VALUE); });
  Expect(FAKE_CUDA_WRONG_FREE, 1, [&] { CHECK(cuMemFree_v2(address(heap.data())) == CUDA_ERROR_INVALID_VALUE); });
  Expect(FAKE_CUDA_WRONG_FREE, 1, [&] { CHECK(cuMemFreeHost(heap.data()) == CUDA_ERROR_INVALID_VALUE); });
  Expect(FAKE_CUDA_WRONG_FREE, 1,
         [&] { CHECK(cuMemFreeHost(reinterpret_cast<void*>(Alloc())) == CUDA_ERROR_INVALID_VALUE); });
  Expect(FAKE_CUDA_WRONG_FREE, 1, [&] { CHECK(cuMemFreeAsync(Alloc(), NewStream()) == CUDA_ERROR_INVALID_VALUE); });
  Expect(FAKE_CUDA_WRONG_FREE, 1,
         [&] { CHECK(cuMemHostUnregister(heap.data()) == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED); });
}

TEST_CASE("use after free of memory, streams and events") {
  std::vector<unsigned char> host(kBytes);
  Expect(FAKE_CUDA_USE_AFTER_FREE, 1, [&] {
    CUdeviceptr memory = Alloc();
    OK(cuMemFree_v2(memory));
    CHECK(cuMemsetD8Async(memory + 1, 0, 1, nullptr) == CUDA_ERROR_INVALID_VALUE);
  });
  Expect(FAKE_CUDA_USE_AFTER_FREE, 1, [&] {
    unsigned char* pinned = Pinned();
    OK(cuMemFreeHost(pinned));
    CHECK(pinned[0] == 0xDD);
    CHECK(cuMemcpyHtoDAsync_v2(Alloc(), pinned, kBytes, nullptr) == CUDA_ERROR_INVALID_VALUE);
  });
  // Even where the stream has not come to the free yet.
  Expect(FAKE_CUDA_USE_AFTER_FREE, 1, [&] {
    CUdeviceptr memory = 0;
    CUstream stream = NewStream();
    OK(cuMemAllocAsync(&memory, kBytes, stream));
    OK(cuMemFreeAsync(memory, stream));
    CHECK(cuMemcpyHtoDAsync_v2(memory, host.data(), kBytes, stream) == CUDA_ERROR_INVALID_VALUE);
  });
  Expect(FAKE_CUDA_USE_AFTER_FREE, 2, [&] {
    CUstream stream = NewStream();
    OK(cuStreamDestroy_v2(stream));
    CHECK(cuMemsetD8Async(Alloc(), 0, 1, stream) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(cuStreamSynchronize(stream) == CUDA_ERROR_INVALID_HANDLE);
  });
  Expect(FAKE_CUDA_USE_AFTER_FREE, 2, [&] {
    CUevent event = NewEvent();
    OK(cuEventDestroy_v2(event));
    CHECK(cuEventRecord(event, nullptr) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(cuEventSynchronize(event) == CUDA_ERROR_INVALID_HANDLE);
  });
}

TEST_CASE("addresses and handles are not used twice") {
  ExpectNothing([] {
    CUdeviceptr last = 0;
    unsigned char* last_pinned = nullptr;
    CUevent last_event = nullptr;
    for (int i = 0; i < 100; ++i) {
      CUdeviceptr memory = Alloc(kBytes);
      CHECK(memory != last);
      CHECK(memory % 512 == 256);
      OK(cuMemFree_v2(last = memory));
      unsigned char* pinned = Pinned();
      CHECK(pinned != last_pinned);
      OK(cuMemFreeHost(last_pinned = pinned));
      CUevent event = NewEvent();
      CHECK(event != last_event);
      OK(cuEventDestroy_v2(last_event = event));
    }
  });
}

TEST_CASE("work pending on freed memory") {
  Expect(FAKE_CUDA_PENDING_WORK, 1, [] {
    CUdeviceptr memory = Alloc();
    OK(cuMemsetD8Async(memory, 0, kBytes, NewStream()));
    OK(cuMemFree_v2(memory));
  });
  // Another stream's synchronization says nothing.
  Expect(FAKE_CUDA_PENDING_WORK, 1, [] {
    CUdeviceptr memory = Alloc();
    CUstream other = NewStream();
    OK(cuMemsetD8Async(memory, 0, kBytes, NewStream()));
    OK(cuMemsetD8Async(Alloc(), 0, kBytes, other));
    OK(cuStreamSynchronize(other));
    OK(cuMemFree_v2(memory));
  });
}

TEST_CASE("no context, and a context that is gone") {
  Expect(FAKE_CUDA_NO_CONTEXT, 1, [] {
    OK(cuCtxSetCurrent(nullptr));
    CUdeviceptr memory = 0;
    CHECK(cuMemAlloc_v2(&memory, kBytes) == CUDA_ERROR_INVALID_CONTEXT);
  });
  Expect(FAKE_CUDA_NO_CONTEXT, 1, [] {
    CUdeviceptr memory = 0;
    std::thread([&] { CHECK(cuMemAlloc_v2(&memory, kBytes) == CUDA_ERROR_INVALID_CONTEXT); }).join();
  });
  Expect(FAKE_CUDA_NO_CONTEXT, 1, [] {
    OK(cuDevicePrimaryCtxRelease_v2(0));
    CUdeviceptr memory = 0;
    CHECK(cuMemAlloc_v2(&memory, kBytes) == CUDA_ERROR_INVALID_CONTEXT);
  });
}

TEST_CASE("the wrong context") {
  Expect(FAKE_CUDA_WRONG_CONTEXT, 1, [] {
    CUstream stream = NewStream();
    CUcontext other = nullptr;
    OK(cuCtxCreate_v2(&other, 0, 0));
    OK(cuMemsetD8Async(Alloc(), 0, kBytes, stream));
  });
  Expect(FAKE_CUDA_WRONG_CONTEXT, 1, [] {
    CUevent event = NewEvent();
    CUcontext other = nullptr;
    OK(cuCtxCreate_v2(&other, 0, 0));
    CHECK(cuEventRecord(event, NewStream()) == CUDA_ERROR_INVALID_HANDLE);
  });
  Expect(FAKE_CUDA_WRONG_CONTEXT, 1, [] {
    CUdeviceptr memory = Alloc();
    CUcontext other = nullptr;
    OK(cuCtxCreate_v2(&other, 0, 0));
    CHECK(cuMemsetD8Async(memory, 0, kBytes, nullptr) == CUDA_ERROR_INVALID_VALUE);
  });
  Expect(FAKE_CUDA_WRONG_CONTEXT, 1, [] {
    CUdeviceptr memory = Alloc();
    CUcontext other = nullptr;
    OK(cuCtxCreate_v2(&other, 0, 0));
    OK(cuMemFree_v2(memory));
  });
}

TEST_CASE("memory of a device that cannot be reached, and pointers of other kinds") {
  auto with_two = [](auto body) {
    return [body] {
      fake_cuda_set_devices(2);
      CUcontext second = nullptr;
      OK(cuDevicePrimaryCtxRetain(&second, 1));
      OK(cuCtxPushCurrent_v2(second));
      CUdeviceptr there = Alloc();
      OK(cuCtxPopCurrent_v2(nullptr));
      body(there);
    };
  };
  std::vector<unsigned char> host(kBytes);
  Expect(FAKE_CUDA_FOREIGN_DEVICE, 1, with_two([&](CUdeviceptr there) {
           CHECK(cuMemcpyHtoDAsync_v2(there, host.data(), kBytes, nullptr) == CUDA_ERROR_INVALID_VALUE);
         }));
  Expect(FAKE_CUDA_FOREIGN_DEVICE, 1, with_two([&](CUdeviceptr there) {
           CHECK(cuMemcpyDtoDAsync_v2(Alloc(), there, kBytes, nullptr) == CUDA_ERROR_INVALID_VALUE);
         }));
  Expect(FAKE_CUDA_FOREIGN_POINTER, 1, [&] {
    auto heap = reinterpret_cast<CUdeviceptr>(host.data());
    CHECK(cuMemsetD8Async(heap, 0, kBytes, nullptr) == CUDA_ERROR_INVALID_VALUE);
  });
  Expect(FAKE_CUDA_FOREIGN_POINTER, 1, [&] {
    auto* device = reinterpret_cast<void*>(Alloc());
    CHECK(cuMemcpyHtoDAsync_v2(Alloc(), device, kBytes, nullptr) == CUDA_ERROR_INVALID_VALUE);
  });
}

TEST_CASE("handles that never were") {
  Expect(FAKE_CUDA_BAD_HANDLE, 3, [] {
    int nothing = 0;
    CHECK(cuStreamSynchronize(reinterpret_cast<CUstream>(&nothing)) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(cuEventSynchronize(reinterpret_cast<CUevent>(&nothing)) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(cuCtxPushCurrent_v2(reinterpret_cast<CUcontext>(&nothing)) == CUDA_ERROR_INVALID_CONTEXT);
  });
}

TEST_CASE("leaks, of every kind of object") {
  Expect(FAKE_CUDA_LEAK, 7, [] {
    static unsigned char registered[64];
    Alloc();
    Pinned();
    NewStream();
    NewEvent();
    CUdeviceptr managed = 0;
    OK(cuMemAllocManaged(&managed, kBytes, CU_MEM_ATTACH_GLOBAL));
    OK(cuMemHostRegister_v2(registered, sizeof(registered), 0));
    CHECK(fake_cuda_check_leaks() == 7);  // and the context that is retained
  });
  // What belongs to a context goes with it.
  Expect(FAKE_CUDA_LEAK, 3, [] {
    Alloc();
    NewStream();
    NewEvent();
    OK(cuDevicePrimaryCtxRelease_v2(0));
  });
}

TEST_CASE("two streams on the same memory with nothing between them") {
  Expect(FAKE_CUDA_UNORDERED, 1, [] {
    CUdeviceptr memory = Alloc();
    OK(cuMemsetD8Async(memory, 1, kBytes, NewStream()));
    OK(cuMemsetD8Async(memory, 2, 1, NewStream()));
  });
  Expect(FAKE_CUDA_UNORDERED, 1, [] {
    CUdeviceptr memory = Alloc();
    OK(cuMemsetD8Async(memory, 1, kBytes, NewStream()));
    OK(cuMemcpyDtoDAsync_v2(Alloc(), memory, kBytes, NewStream()));
  });
  // A copy from pageable memory has read its source when it returns; the bytes may still be on their way.
  Expect(FAKE_CUDA_UNORDERED, 1, [] {
    CUdeviceptr memory = Alloc();
    std::vector<unsigned char> source = Pattern();
    OK(cuMemcpyHtoD_v2(memory, source.data(), kBytes));
    source[0] ^= 1;
    OK(cuMemcpyDtoDAsync_v2(Alloc(), memory, kBytes, NewStream()));
  });
  // Memory that another stream allocates.
  Expect(FAKE_CUDA_UNORDERED, 1, [] {
    CUdeviceptr memory = 0;
    OK(cuMemAllocAsync(&memory, kBytes, NewStream()));
    OK(cuMemsetD8Async(memory, 0, kBytes, NewStream()));
  });
  // Freed in one stream, while another one uses it.
  Expect(FAKE_CUDA_UNORDERED, 1, [] {
    CUdeviceptr memory = 0;
    CUstream stream = NewStream();
    OK(cuMemAllocAsync(&memory, kBytes, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemsetD8Async(memory, 0, kBytes, NewStream()));
    OK(cuMemFreeAsync(memory, stream));
  });
}

TEST_CASE("overlapping copies, pops without pushes, calls before cuInit") {
  Expect(FAKE_CUDA_MISUSE, 1, [] {
    CUdeviceptr memory = Alloc();
    CHECK(cuMemcpyDtoDAsync_v2(memory + 1, memory, kBytes - 1, nullptr) == CUDA_ERROR_INVALID_VALUE);
  });
  Expect(FAKE_CUDA_MISUSE, 1, [] {
    OK(cuCtxPopCurrent_v2(nullptr));
    CHECK(cuCtxPopCurrent_v2(nullptr) == CUDA_ERROR_INVALID_CONTEXT);
  });
  fake_cuda_reset();
  fake_cuda_set_quiet(1);
  int count = 0;
  CHECK(cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED);
  CHECK(fake_cuda_violations_of(FAKE_CUDA_MISUSE) == 1);
  fake_cuda_reset();
}

TEST_CASE("a kernel outside of what it declared") {
  Expect(FAKE_CUDA_OUT_OF_BOUNDS, 3, [] {
    CUdeviceptr memory = Alloc();
    fake_cuda_range range = {memory, kBytes, 0};
    CUstream stream = NewStream();
    auto body = [](fake_cuda_kernel* kernel, void* user) {
      CUdeviceptr address = *static_cast<CUdeviceptr*>(user);
      unsigned char byte = 0;
      CHECK(fake_cuda_kernel_read(kernel, &byte, address + kBytes - 1, 1) == 0);
      CHECK(fake_cuda_kernel_read(kernel, &byte, address + kBytes, 1) == 1);
      CHECK(fake_cuda_kernel_write(kernel, address, &byte, 1) == 1);
    };
    CHECK(fake_cuda_launch(stream, body, &memory, &range, 1) == 0);
    OK(cuStreamSynchronize(stream));
    range.nbytes = kBytes + 1;
    CHECK(fake_cuda_launch(stream, body, &memory, &range, 1) == CUDA_ERROR_INVALID_VALUE);
  });
}

TEST_CASE("the host cannot dereference a device address, and freed pinned memory does not come back") {
  ExpectNothing([] {
    CUdeviceptr memory = Alloc();
    pid_t child = fork();
    if (child == 0) {
      std::signal(SIGSEGV, SIG_DFL);  // a sanitizer's handler would only print
      unsigned char byte = *reinterpret_cast<volatile unsigned char*>(memory);
      _exit(byte == 0 ? 0 : 1);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status));
    CHECK(WTERMSIG(status) == SIGSEGV);
    OK(cuMemFree_v2(memory));
  });
}

TEST_CASE("a forked child") {
  ExpectNothing([] {
    CUdeviceptr memory = Alloc();
    pid_t child = fork();
    if (child == 0) {
      fake_cuda_set_quiet(1);
      CUdeviceptr other = 0;
      bool refused = cuMemAlloc_v2(&other, kBytes) == CUDA_ERROR_NOT_INITIALIZED &&
                     cuMemFree_v2(memory) == CUDA_ERROR_NOT_INITIALIZED && cuInit(0) == CUDA_ERROR_NOT_INITIALIZED;
      _exit(refused && fake_cuda_violations_of(FAKE_CUDA_FORKED) == 3 ? 0 : 1);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
    OK(cuMemFree_v2(memory));
  });
}
