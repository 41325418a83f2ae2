// Correct programs: the right bytes, and no report, under every schedule.
#include <cstring>
#include <thread>

#include "test/fake_cuda/fixture.h"

using namespace fake_cuda_test;

TEST_CASE("pinned bytes go to the device and back") {
  ExpectNothing([] {
    std::vector<unsigned char> bytes = Pattern();
    CUstream stream = NewStream();
    CUdeviceptr memory = Alloc();
    unsigned char* in = Pinned();
    unsigned char* out = Pinned();
    std::memcpy(in, bytes.data(), kBytes);
    OK(cuMemcpyHtoDAsync_v2(memory, in, kBytes, stream));
    OK(cuMemcpyDtoHAsync_v2(out, memory, kBytes, stream));
    OK(cuStreamSynchronize(stream));
    CHECK(std::memcmp(out, bytes.data(), kBytes) == 0);
    OK(cuMemFreeHost(in));
    OK(cuMemFreeHost(out));
    OK(cuMemFree_v2(memory));
    OK(cuStreamDestroy_v2(stream));
  });
}

TEST_CASE("a ring of pinned slots, each waited for before it is filled again") {
  ExpectNothing([] {
    constexpr int kSlots = 2, kChunks = 7;
    CUstream stream = NewStream();
    CUdeviceptr memory = Alloc(kChunks * kBytes);
    unsigned char* slots[kSlots];
    CUevent done[kSlots];
    for (int i = 0; i < kSlots; ++i) {
      slots[i] = Pinned();
      done[i] = NewEvent();
    }
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      int slot = chunk % kSlots;
      OK(cuEventSynchronize(done[slot]));
      std::memset(slots[slot], chunk, kBytes);
      OK(cuMemcpyHtoDAsync_v2(memory + static_cast<size_t>(chunk) * kBytes, slots[slot], kBytes, stream));
      OK(cuEventRecord(done[slot], stream));
    }
    OK(cuStreamSynchronize(stream));
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      unsigned char last = 0xFF;
      CHECK(fake_cuda_peek(&last, memory + static_cast<size_t>(chunk + 1) * kBytes - 1, 1) == 0);
      CHECK(last == chunk);
    }
    for (int i = 0; i < kSlots; ++i) {
      OK(cuMemFreeHost(slots[i]));
      OK(cuEventDestroy_v2(done[i]));
    }
    OK(cuMemFree_v2(memory));
    OK(cuStreamDestroy_v2(stream));
  });
}

TEST_CASE("pageable memory: late, and early") {
  for (fake_cuda_pageable pageable : {FAKE_CUDA_PAGEABLE_LATE, FAKE_CUDA_PAGEABLE_EARLY}) {
    ExpectNothing([&] {
      fake_cuda_set_pageable(pageable);
      std::vector<unsigned char> bytes = Pattern(), out(kBytes);
      CUstream stream = NewStream();
      CUdeviceptr memory = Alloc();
      OK(cuMemcpyHtoDAsync_v2(memory, bytes.data(), kBytes, stream));
      // The source may be reused at once in the one way, after a synchronization in the other.
      if (pageable == FAKE_CUDA_PAGEABLE_LATE) OK(cuStreamSynchronize(stream));
      bytes.assign(kBytes, 0);
      OK(cuMemcpyDtoHAsync_v2(out.data(), memory, kBytes, stream));
      if (pageable == FAKE_CUDA_PAGEABLE_LATE) OK(cuStreamSynchronize(stream));
      CHECK(out == Pattern());
      OK(cuStreamSynchronize(stream));
      OK(cuMemFree_v2(memory));
      OK(cuStreamDestroy_v2(stream));
    });
  }
}

TEST_CASE("blocking copies, in the legacy stream") {
  ExpectNothing([] {
    std::vector<unsigned char> bytes = Pattern(), out(kBytes);
    CUdeviceptr memory = Alloc();
    OK(cuMemcpyHtoD_v2(memory, bytes.data(), kBytes));
    bytes.assign(kBytes, 0);
    OK(cuMemcpyDtoH_v2(out.data(), memory, kBytes));
    CHECK(out == Pattern());
    OK(cuMemFree_v2(memory));
  });
}

TEST_CASE("fresh memory is 0xCB, on the device, pinned and managed") {
  ExpectNothing([] {
    CUdeviceptr memory = Alloc(), managed = 0;
    OK(cuMemAllocManaged(&managed, kBytes, CU_MEM_ATTACH_GLOBAL));
    unsigned char* pinned = Pinned();
    std::vector<unsigned char> out(kBytes), fresh(kBytes, 0xCB);
    OK(cuMemcpyDtoH_v2(out.data(), memory, kBytes));
    CHECK(out == fresh);
    CHECK(std::memcmp(pinned, fresh.data(), kBytes) == 0);
    CHECK(std::memcmp(reinterpret_cast<void*>(managed), fresh.data(), kBytes) == 0);
    OK(cuMemFree_v2(memory));
    OK(cuMemFree_v2(managed));
    OK(cuMemFreeHost(pinned));
  });
}

TEST_CASE("allocations of more than 4 GiB cost what is touched of them") {
  ExpectNothing([] {
    constexpr size_t kLarge = (size_t{1} << 32) + 1;
    CUdeviceptr memory = Alloc(kLarge);
    CHECK(fake_cuda_bytes_used(0) == kLarge);
    std::vector<unsigned char> bytes = Pattern(), out(kBytes);
    OK(cuMemcpyHtoD_v2(memory + kLarge - kBytes, bytes.data(), kBytes));
    OK(cuMemcpyDtoH_v2(out.data(), memory + kLarge - kBytes, kBytes));
    CHECK(out == bytes);
    OK(cuMemFree_v2(memory));
    CHECK(fake_cuda_bytes_used(0) == 0);
  });
}

TEST_CASE("events order streams") {
  ExpectNothing([] {
    CUstream first = NewStream(), second = NewStream();
    CUdeviceptr memory = Alloc(), copy = Alloc();
    CUevent filled = NewEvent();
    OK(cuStreamWaitEvent(second, filled, 0));  // never recorded: nothing to wait for
    OK(cuMemsetD8Async(memory, 3, kBytes, first));
    OK(cuEventRecord(filled, first));
    OK(cuStreamWaitEvent(second, filled, 0));
    OK(cuMemcpyDtoDAsync_v2(copy, memory, kBytes, second));
    OK(cuStreamSynchronize(second));  // and so the first stream's work is known done as well
    unsigned char byte = 0;
    CHECK(fake_cuda_peek(&byte, copy + kBytes - 1, 1) == 0);
    CHECK(byte == 3);
    OK(cuMemFree_v2(memory));
    OK(cuMemFree_v2(copy));
    OK(cuEventDestroy_v2(filled));
    OK(cuStreamDestroy_v2(first));
    OK(cuStreamDestroy_v2(second));
  });
}

TEST_CASE("an event stands for the last record, and a wait for the record before it") {
  ExpectNothing([] {
    CUstream first = NewStream(), second = NewStream();
    CUdeviceptr a = Alloc(), b = Alloc();
    CUevent event = NewEvent();
    OK(cuMemsetD8Async(a, 1, kBytes, first));
    OK(cuEventRecord(event, first));
    OK(cuStreamWaitEvent(second, event, 0));
    OK(cuMemsetD8Async(b, 1, kBytes, first));
    OK(cuEventRecord(event, first));
    OK(cuMemsetD8Async(a, 2, kBytes, second));  // ordered behind the first record
    OK(cuEventSynchronize(event));              // the second
    OK(cuMemFree_v2(b));
    OK(cuStreamSynchronize(second));
    OK(cuMemFree_v2(a));
    OK(cuEventDestroy_v2(event));
    OK(cuStreamDestroy_v2(first));
    OK(cuStreamDestroy_v2(second));
  });
}

TEST_CASE("the legacy stream waits for blocking streams, and they for it") {
  ExpectNothing([] {
    CUstream blocking = NewStream(CU_STREAM_DEFAULT);
    CUdeviceptr memory = Alloc();
    OK(cuMemsetD8Async(memory, 1, kBytes, blocking));
    OK(cuMemsetD8Async(memory, 2, kBytes, nullptr));
    OK(cuMemsetD8Async(memory, 3, kBytes, blocking));
    OK(cuMemsetD8Async(memory, 4, kBytes, CU_STREAM_LEGACY));
    OK(cuStreamSynchronize(CU_STREAM_LEGACY));
    unsigned char byte = 0;
    CHECK(fake_cuda_peek(&byte, memory, 1) == 0);
    CHECK(byte == 4);
    OK(cuMemFree_v2(memory));
    OK(cuStreamDestroy_v2(blocking));
  });
}

TEST_CASE("asking makes progress, as on a device") {
  ExpectNothing([] {
    CUstream stream = NewStream();
    CUevent event = NewEvent();
    CUdeviceptr memory = Alloc();
    CHECK(cuEventQuery(event) == CUDA_SUCCESS);
    CHECK(cuStreamQuery(stream) == CUDA_SUCCESS);
    OK(cuMemsetD8Async(memory, 1, kBytes, stream));
    OK(cuEventRecord(event, stream));
    while (cuEventQuery(event) == CUDA_ERROR_NOT_READY) std::this_thread::yield();
    OK(cuMemsetD8Async(memory, 2, kBytes, stream));
    while (cuStreamQuery(stream) == CUDA_ERROR_NOT_READY) std::this_thread::yield();
    OK(cuMemFree_v2(memory));
    OK(cuEventDestroy_v2(event));
    OK(cuStreamDestroy_v2(stream));
  });
}

TEST_CASE("pinned memory used back and forth on one stream") {
  ExpectNothing([] {
    CUstream stream = NewStream();
    CUdeviceptr a = Alloc(), b = Alloc();
    unsigned char* pinned = Pinned();
    OK(cuMemsetD8Async(a, 1, kBytes, stream));
    OK(cuMemcpyDtoHAsync_v2(pinned, a, kBytes, stream));
    OK(cuMemcpyHtoDAsync_v2(b, pinned, kBytes, stream));
    OK(cuMemsetD8Async(a, 2, kBytes, stream));
    OK(cuMemcpyDtoHAsync_v2(pinned, a, kBytes, stream));
    OK(cuStreamSynchronize(stream));
    unsigned char byte = 0;
    CHECK(fake_cuda_peek(&byte, b, 1) == 0);
    CHECK(byte == 1);
    CHECK(pinned[kBytes - 1] == 2);
    OK(cuMemFreeHost(pinned));
    OK(cuMemFree_v2(a));
    OK(cuMemFree_v2(b));
    OK(cuStreamDestroy_v2(stream));
  });
}

TEST_CASE("kernels: in stream order, on device, managed and pinned memory") {
  ExpectNothing([] {
    struct Arguments {
      CUdeviceptr dest, src;
    };
    // dest[i] = src[i] + 1
    auto increment = [](fake_cuda_kernel* kernel, void* user) {
      auto [dest, src] = *static_cast<Arguments*>(user);
      std::vector<unsigned char> bytes(kBytes);
      CHECK(fake_cuda_kernel_read(kernel, bytes.data(), src, kBytes) == 0);
      for (unsigned char& byte : bytes) ++byte;
      CHECK(fake_cuda_kernel_write(kernel, dest, bytes.data(), kBytes) == 0);
    };
    CUstream stream = NewStream();
    CUdeviceptr memory = Alloc(), managed = 0;
    OK(cuMemAllocManaged(&managed, kBytes, CU_MEM_ATTACH_GLOBAL));
    unsigned char* pinned = Pinned();
    auto mapped = reinterpret_cast<CUdeviceptr>(pinned);
    Arguments steps[] = {{managed, memory}, {mapped, managed}, {memory, mapped}};
    OK(cuMemsetD8Async(memory, 1, kBytes, stream));
    for (Arguments& step : steps) {
      fake_cuda_range ranges[] = {{step.dest, kBytes, 1}, {step.src, kBytes, 0}};
      CHECK(fake_cuda_launch(stream, increment, &step, ranges, 2) == 0);
    }
    OK(cuStreamSynchronize(stream));
    CHECK(*reinterpret_cast<unsigned char*>(managed) == 2);
    CHECK(pinned[0] == 3);
    unsigned char byte = 0;
    CHECK(fake_cuda_peek(&byte, memory, 1) == 0);
    CHECK(byte == 4);
    OK(cuMemFreeHost(pinned));
    OK(cuMemFree_v2(memory));
    OK(cuMemFree_v2(managed));
    OK(cuStreamDestroy_v2(stream));
  });
}

TEST_CASE("a host function sees what was copied before it, and may change a source") {
  ExpectNothing([] {
    CUstream stream = NewStream();
    CUdeviceptr memory = Alloc(), copy = Alloc();
    unsigned char* pinned = Pinned();
    OK(cuMemsetD8Async(memory, 1, kBytes, stream));
    OK(cuMemcpyDtoHAsync_v2(pinned, memory, kBytes, stream));
    OK(cuLaunchHostFunc(
        stream, [](void* user) { ++*static_cast<unsigned char*>(user); }, pinned));
    OK(cuMemcpyHtoDAsync_v2(copy, pinned, kBytes, stream));
    OK(cuStreamSynchronize(stream));
    unsigned char bytes[2] = {};
    CHECK(fake_cuda_peek(bytes, copy, 2) == 0);
    CHECK(bytes[0] == 2);
    CHECK(bytes[1] == 1);
    OK(cuMemFreeHost(pinned));
    OK(cuMemFree_v2(memory));
    OK(cuMemFree_v2(copy));
    OK(cuStreamDestroy_v2(stream));
  });
}

TEST_CASE("copies between devices, with and without peer access") {
  ExpectNothing([] {
    fake_cuda_set_devices(2);
    CUcontext contexts[2];
    CUdeviceptr memories[2];
    CUstream streams[2];
    CUevent filled = nullptr;
    for (int device : {0, 1}) {
      OK(cuDevicePrimaryCtxRetain(&contexts[device], device));
      OK(cuCtxPushCurrent_v2(contexts[device]));
      memories[device] = Alloc();
      streams[device] = NewStream();
      if (device == 1) filled = NewEvent();
      OK(cuMemsetD8Async(memories[device], static_cast<unsigned char>(device + 1), kBytes, streams[device]));
      if (device == 1) OK(cuEventRecord(filled, streams[device]));
      OK(cuCtxPopCurrent_v2(nullptr));
    }
    // Asymmetric: the first can access the second, not the other way round.
    int can_access = -1;
    OK(cuDeviceCanAccessPeer(&can_access, 0, 1));
    CHECK(can_access == 1);
    OK(cuDeviceCanAccessPeer(&can_access, 1, 0));
    CHECK(can_access == 0);
    OK(cuStreamWaitEvent(streams[0], filled, 0));
    OK(cuMemcpyPeerAsync(memories[0], contexts[0], memories[1], contexts[1], kBytes, streams[0]));
    OK(cuCtxEnablePeerAccess(contexts[1], 0));
    CHECK(cuCtxEnablePeerAccess(contexts[1], 0) == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    OK(cuMemcpyDtoDAsync_v2(memories[0], memories[1], kBytes, streams[0]));
    OK(cuStreamSynchronize(streams[0]));
    unsigned char byte = 0;
    CHECK(fake_cuda_peek(&byte, memories[0], 1) == 0);
    CHECK(byte == 2);
    for (int device : {1, 0}) {
      OK(cuCtxPushCurrent_v2(contexts[device]));
      if (device == 1) CHECK(cuCtxEnablePeerAccess(contexts[0], 0) == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
      if (device == 1) OK(cuEventDestroy_v2(filled));
      OK(cuMemFree_v2(memories[device]));
      OK(cuStreamDestroy_v2(streams[device]));
      OK(cuCtxPopCurrent_v2(nullptr));
      OK(cuDevicePrimaryCtxRelease_v2(device));
    }
  });
}

TEST_CASE("stream-ordered memory: reuse behind a free, the pool's threshold, trimming") {
  ExpectNothing([] {
    fake_cuda_set_capacity(0, 2 * kBytes);
    CUstream stream = NewStream();
    CUmemoryPool pool = nullptr;
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    CUdeviceptr a = 0, b = 0;
    OK(cuMemAllocAsync(&a, 2 * kBytes, stream));
    OK(cuMemsetD8Async(a, 1, kBytes, stream));
    CHECK(cuMemAllocAsync(&b, 1, stream) == CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemFreeAsync(a, stream));
    OK(cuMemAllocAsync(&b, 2 * kBytes, stream));  // no synchronization needed on the same stream
    CHECK(a != b);
    OK(cuMemFreeAsync(b, stream));
    // With a threshold the pool keeps what is free, and nobody else gets it.
    cuuint64_t threshold = UINT64_MAX;
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    OK(cuStreamSynchronize(stream));
    CHECK(fake_cuda_bytes_used(0) == 2 * kBytes);
    CUdeviceptr plain = 0;
    CHECK(cuMemAlloc_v2(&plain, kBytes) == CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemPoolTrimTo(pool, 0));
    OK(cuMemAlloc_v2(&plain, kBytes));
    OK(cuMemFree_v2(plain));
    CHECK(fake_cuda_bytes_used(0) == 0);
    OK(cuStreamDestroy_v2(stream));
  });
}

TEST_CASE("threads, each with its own stream") {
  ExpectNothing([] {
    CUcontext context = nullptr;
    OK(cuCtxGetCurrent(&context));
    std::vector<std::thread> threads;
    std::vector<int> wrong(4, -1);
    for (size_t t = 0; t < wrong.size(); ++t) {
      threads.emplace_back([t, context, &wrong] {
        // No doctest macros here: they would order the threads.
        bool ok = cuCtxPushCurrent_v2(context) == CUDA_SUCCESS;
        CUstream stream = nullptr;
        CUdeviceptr memory = 0;
        void* pinned = nullptr;
        ok = ok && cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS;
        ok = ok && cuMemAlloc_v2(&memory, kBytes) == CUDA_SUCCESS;
        ok = ok && cuMemHostAlloc(&pinned, kBytes, 0) == CUDA_SUCCESS;
        std::vector<unsigned char> out(kBytes);
        for (unsigned round = 0; ok && round < 50; ++round) {
          std::vector<unsigned char> bytes = Pattern(kBytes, static_cast<unsigned>(t) * 50 + round);
          std::memcpy(pinned, bytes.data(), kBytes);
          ok = cuMemcpyHtoDAsync_v2(memory, pinned, kBytes, stream) == CUDA_SUCCESS &&
               cuMemcpyDtoHAsync_v2(out.data(), memory, kBytes, stream) == CUDA_SUCCESS &&
               cuStreamSynchronize(stream) == CUDA_SUCCESS && out == bytes;
        }
        ok = cuMemFree_v2(memory) == CUDA_SUCCESS && cuMemFreeHost(pinned) == CUDA_SUCCESS &&
             cuStreamDestroy_v2(stream) == CUDA_SUCCESS && cuCtxPopCurrent_v2(nullptr) == CUDA_SUCCESS && ok;
        wrong[t] = ok ? 0 : 1;
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == std::vector<int>(4, 0));
  });
}

TEST_CASE("threads on one stream") {
  ExpectNothing([] {
    CUcontext context = nullptr;
    OK(cuCtxGetCurrent(&context));
    CUstream stream = NewStream();
    std::vector<std::thread> threads;
    std::vector<int> wrong(4, -1);
    for (size_t t = 0; t < wrong.size(); ++t) {
      threads.emplace_back([t, context, stream, &wrong] {
        bool ok = cuCtxPushCurrent_v2(context) == CUDA_SUCCESS;
        for (unsigned round = 0; ok && round < 50; ++round) {
          CUdeviceptr memory = 0;
          std::vector<unsigned char> out(kBytes), bytes = Pattern(kBytes, static_cast<unsigned>(t) + round);
          ok = cuMemAlloc_v2(&memory, kBytes) == CUDA_SUCCESS &&
               cuMemcpyHtoDAsync_v2(memory, bytes.data(), kBytes, stream) == CUDA_SUCCESS &&
               cuMemcpyDtoHAsync_v2(out.data(), memory, kBytes, stream) == CUDA_SUCCESS &&
               cuStreamSynchronize(stream) == CUDA_SUCCESS && out == bytes && cuMemFree_v2(memory) == CUDA_SUCCESS;
        }
        wrong[t] = ok && cuCtxPopCurrent_v2(nullptr) == CUDA_SUCCESS ? 0 : 1;
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == std::vector<int>(4, 0));
    OK(cuStreamDestroy_v2(stream));
  });
}

TEST_CASE("what can be asked about a pointer") {
  ExpectNothing([] {
    CUdeviceptr memory = Alloc();
    unsigned char* pinned = Pinned();
    auto pinned_address = reinterpret_cast<CUdeviceptr>(pinned);
    CUcontext context = nullptr, current = nullptr;
    unsigned type = 0;
    int ordinal = -1;
    size_t size = 0;
    OK(cuCtxGetCurrent(&current));
    OK(cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, memory + 5));
    CHECK(context == current);
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory));
    CHECK(type == CU_MEMORYTYPE_DEVICE);
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pinned_address));
    CHECK(type == CU_MEMORYTYPE_HOST);
    OK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, memory));
    CHECK(ordinal == 0);
    OK(cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, memory));
    CHECK(size == kBytes);
    CHECK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, reinterpret_cast<CUdeviceptr>(&type)) ==
          CUDA_ERROR_INVALID_VALUE);
    CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_CONTEXT};
    void* values[] = {&type, &context};
    OK(cuPointerGetAttributes(2, attributes, values, reinterpret_cast<CUdeviceptr>(&type)));
    CHECK(type == 0);
    CHECK(context == nullptr);
    OK(cuMemFree_v2(memory));
    OK(cuMemFreeHost(pinned));
  });
}
