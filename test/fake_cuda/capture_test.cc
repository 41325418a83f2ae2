// Stream capture: what is forbidden is reported and invalidates the capture, what is not leaves it whole.
#include <thread>

#include "test/fake_cuda/fixture.h"

using namespace fake_cuda_test;

extern "C" CUresult cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id,
                                              CUgraph* graph, const CUgraphNode** dependencies, size_t* count);

namespace {

CUstreamCaptureStatus StatusOf(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  OK(cuStreamIsCapturing(stream, &status));
  return status;
}

struct Things {
  CUdeviceptr memory = Alloc(), other = Alloc();
  CUstream stream = NewStream(), outside = NewStream();
  CUevent event = NewEvent(), inside = NewEvent();
  unsigned char* pinned = Pinned();
  std::vector<unsigned char> pageable = Pattern();
};

// `call` is refused with `code` while a stream is capturing, and the capture is lost.
void Forbidden(CUresult code, const std::function<CUresult(Things&)>& call,
               CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL) {
  Expect(FAKE_CUDA_CAPTURE, 1, [&] {
    Things things;
    OK(cuEventRecord(things.event, things.outside));
    OK(cuStreamBeginCapture_v2(things.stream, mode));
    OK(cuMemsetD8Async(things.memory, 1, kBytes, things.stream));
    OK(cuEventRecord(things.inside, things.stream));
    CHECK(call(things) == code);
    CHECK(StatusOf(things.stream) == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    CUgraph graph = reinterpret_cast<CUgraph>(&things);
    CHECK(cuStreamEndCapture(things.stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CHECK(graph == nullptr);
    CHECK(StatusOf(things.stream) == CU_STREAM_CAPTURE_STATUS_NONE);
  });
}

}  // namespace

TEST_CASE("a capture runs nothing until its graph is launched, as often as that") {
  ExpectNothing([] {
    Things things;
    OK(cuMemsetD8Async(things.memory, 1, kBytes, things.stream));
    OK(cuStreamSynchronize(things.stream));
    OK(cuStreamBeginCapture_v2(things.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CHECK(StatusOf(things.stream) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    CHECK(StatusOf(things.outside) == CU_STREAM_CAPTURE_STATUS_NONE);
    OK(cuMemsetD8Async(things.memory, 2, kBytes, things.stream));
    OK(cuMemcpyDtoDAsync_v2(things.other, things.memory, kBytes, things.stream));
    // Other streams go on.
    OK(cuMemsetD8Async(things.other, 9, kBytes, things.outside));
    OK(cuStreamSynchronize(things.outside));
    CUgraph graph = nullptr;
    OK(cuStreamEndCapture(things.stream, &graph));
    size_t nodes = 0;
    OK(cuGraphGetNodes(graph, nullptr, &nodes));
    CHECK(nodes == 2);
    unsigned char byte = 0;
    CHECK(fake_cuda_peek(&byte, things.memory, 1) == 0);
    CHECK(byte == 1);
    CUgraphExec executable = nullptr;
    OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
    for (int i = 0; i < 2; ++i) {
      OK(cuMemsetD8Async(things.other, 5, kBytes, things.stream));
      OK(cuGraphLaunch(executable, things.stream));
      OK(cuStreamSynchronize(things.stream));
      CHECK(fake_cuda_peek(&byte, things.other + kBytes - 1, 1) == 0);
      CHECK(byte == 2);
    }
    OK(cuGraphExecDestroy(executable));
    OK(cuGraphDestroy(graph));
    OK(cuMemFree_v2(things.memory));
    OK(cuMemFree_v2(things.other));
    OK(cuMemFreeHost(things.pinned));
    OK(cuStreamDestroy_v2(things.stream));
    OK(cuStreamDestroy_v2(things.outside));
    OK(cuEventDestroy_v2(things.event));
    OK(cuEventDestroy_v2(things.inside));
  });
}

TEST_CASE("calls that are unsafe during a capture") {
  constexpr CUresult kUnsupported = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  Forbidden(kUnsupported, [](Things&) {
    CUdeviceptr memory = 0;
    return cuMemAlloc_v2(&memory, kBytes);
  });
  Forbidden(kUnsupported, [](Things&) {
    CUdeviceptr memory = 0;
    return cuMemAllocManaged(&memory, kBytes, CU_MEM_ATTACH_GLOBAL);
  });
  Forbidden(kUnsupported, [](Things& things) { return cuMemFree_v2(things.other); });
  Forbidden(kUnsupported, [](Things&) {
    void* pinned = nullptr;
    return cuMemHostAlloc(&pinned, kBytes, 0);
  });
  Forbidden(kUnsupported, [](Things& things) { return cuMemFreeHost(things.pinned); });
  Forbidden(kUnsupported, [](Things& things) { return cuMemHostRegister_v2(things.pageable.data(), kBytes, 0); });
  Forbidden(kUnsupported, [](Things& things) { return cuMemcpyHtoD_v2(things.other, things.pageable.data(), kBytes); });
  Forbidden(kUnsupported, [](Things& things) { return cuMemcpyDtoH_v2(things.pageable.data(), things.other, kBytes); });
  Forbidden(kUnsupported, [](Things&) { return cuCtxSynchronize(); });
  Forbidden(kUnsupported, [](Things& things) { return cuEventQuery(things.event); });
  Forbidden(kUnsupported, [](Things& things) { return cuEventSynchronize(things.event); });
}

TEST_CASE("waiting for a stream that captures, and stream-ordered or pageable memory on it") {
  constexpr CUresult kUnsupported = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  constexpr CUstreamCaptureMode kRelaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
  Forbidden(
      kUnsupported, [](Things& things) { return cuStreamSynchronize(things.stream); }, kRelaxed);
  Forbidden(
      kUnsupported, [](Things& things) { return cuStreamQuery(things.stream); }, kRelaxed);
  Forbidden(
      kUnsupported,
      [](Things& things) {
        CUdeviceptr memory = 0;
        return cuMemAllocAsync(&memory, kBytes, things.stream);
      },
      kRelaxed);
  Forbidden(
      kUnsupported,
      [](Things& things) { return cuMemcpyHtoDAsync_v2(things.other, things.pageable.data(), kBytes, things.stream); },
      kRelaxed);
  Forbidden(
      CUDA_ERROR_CAPTURED_EVENT, [](Things& things) { return cuEventSynchronize(things.inside); }, kRelaxed);
  Forbidden(CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
            [](Things& things) { return cuStreamWaitEvent(things.stream, things.event, 0); });
}

TEST_CASE("work in the legacy stream while a blocking stream captures") {
  Expect(FAKE_CUDA_CAPTURE, 1, [] {
    CUdeviceptr memory = Alloc();
    CUstream stream = NewStream(CU_STREAM_DEFAULT);
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK(cuMemsetD8Async(memory, 0, kBytes, nullptr) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    CUgraph graph = nullptr;
    CHECK(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  });
}

TEST_CASE("modes: whose calls are forbidden") {
  auto allocates = [](CUstreamCaptureMode mode, bool another_thread, CUstreamCaptureMode own) {
    fake_cuda_reset();
    fake_cuda_set_quiet(1);
    CUcontext context = Start();
    OK(cuStreamBeginCapture_v2(NewStream(), mode));
    CUresult code = CUDA_ERROR_UNKNOWN;
    auto call = [&] {
      OK(cuCtxSetCurrent(context));
      OK(cuThreadExchangeStreamCaptureMode(&own));
      CUdeviceptr memory = 0;
      code = cuMemAlloc_v2(&memory, kBytes);
    };
    if (another_thread) {
      std::thread(call).join();
    } else {
      call();
    }
    fake_cuda_reset();
    return code == CUDA_SUCCESS;
  };
  constexpr auto kGlobal = CU_STREAM_CAPTURE_MODE_GLOBAL;
  constexpr auto kThread = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
  constexpr auto kRelaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
  CHECK_FALSE(allocates(kGlobal, false, kGlobal));
  CHECK_FALSE(allocates(kGlobal, true, kGlobal));
  CHECK_FALSE(allocates(kThread, false, kGlobal));
  CHECK(allocates(kThread, true, kGlobal));
  CHECK(allocates(kGlobal, true, kThread));
  CHECK_FALSE(allocates(kGlobal, false, kThread));
  CHECK(allocates(kRelaxed, false, kGlobal));
  CHECK(allocates(kGlobal, false, kRelaxed));
}

TEST_CASE("a stream that joins a capture has to be joined back") {
  auto fork = [](bool back) {
    return [back] {
      CUdeviceptr memory = Alloc();
      CUstream origin = NewStream(), other = NewStream();
      CUevent event = NewEvent();
      OK(cuStreamBeginCapture_v2(origin, CU_STREAM_CAPTURE_MODE_GLOBAL));
      OK(cuEventRecord(event, origin));
      OK(cuStreamWaitEvent(other, event, 0));
      CHECK(StatusOf(other) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
      OK(cuMemsetD8Async(memory, 0, kBytes, other));
      if (back) {
        OK(cuEventRecord(event, other));
        OK(cuStreamWaitEvent(origin, event, 0));
      }
      CUgraph graph = nullptr;
      CUresult code = cuStreamEndCapture(origin, &graph);
      CHECK(code == (back ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNJOINED));
      CHECK(StatusOf(other) == CU_STREAM_CAPTURE_STATUS_NONE);
      if (back) OK(cuGraphDestroy(graph));
      OK(cuEventDestroy_v2(event));
      OK(cuStreamDestroy_v2(other));
      OK(cuStreamDestroy_v2(origin));
      OK(cuMemFree_v2(memory));
    };
  };
  ExpectNothing(fork(true));
  Expect(FAKE_CUDA_CAPTURE, 1, fork(false));
}

TEST_CASE("a graph that uses memory which was freed") {
  Expect(FAKE_CUDA_USE_AFTER_FREE, 1, [] {
    CUdeviceptr memory = Alloc();
    CUstream stream = NewStream();
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuMemsetD8Async(memory, 0, kBytes, stream));
    CUgraph graph = nullptr;
    OK(cuStreamEndCapture(stream, &graph));
    CUgraphExec executable = nullptr;
    OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
    OK(cuMemFree_v2(memory));
    CHECK(cuGraphLaunch(executable, stream) == CUDA_ERROR_INVALID_VALUE);
  });
}

TEST_CASE("the identity of a capture") {
  ExpectNothing([] {
    CUstream stream = NewStream();
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    cuuint64_t first = 0, second = 0;
    CUgraph graph = nullptr;
    OK(cuStreamGetCaptureInfo_v2(stream, &status, nullptr, nullptr, nullptr, nullptr));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
    for (cuuint64_t* id : {&first, &second}) {
      OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
      OK(cuStreamGetCaptureInfo_v2(stream, &status, id, nullptr, nullptr, nullptr));
      CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
      OK(cuStreamEndCapture(stream, &graph));
      OK(cuGraphDestroy(graph));
    }
    CHECK(first != second);
    OK(cuStreamDestroy_v2(stream));
  });
}

TEST_CASE("a capture whose stream is destroyed is lost, and in nobody's way") {
  Expect(FAKE_CUDA_CAPTURE, 1, [] {
    CUstream stream = NewStream();
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuStreamDestroy_v2(stream));
    Alloc();
  });
}
