// Streams.
#include "test/fake_cuda/abi.h"

using namespace fake_cuda;

FAKE_CUDA_ABI_BEGIN

CUresult cuStreamCreate(CUstream* handle, unsigned int flags) {
  return Enter("cuStreamCreate", kContext, [&](Call& call) -> CUresult {
    if (handle == nullptr || flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    auto stream = std::make_shared<Stream>();
    stream->id = ++call.driver.next_stream;
    stream->context = call.context;
    stream->blocking = flags != CU_STREAM_NON_BLOCKING;
    *handle = stream->handle = call.driver.streams.Add(stream, call.driver.NextHandle());
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamCreateWithPriority(CUstream* handle, unsigned int flags, int) { return cuStreamCreate(handle, flags); }

// Work that is on the stream goes on.
CUresult cuStreamDestroy_v2(CUstream handle) {
  return Enter("cuStreamDestroy_v2", kContext, [&](Call& call) -> CUresult {
    if (handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
      return call.Wrong(FAKE_CUDA_WRONG_FREE, CUDA_ERROR_INVALID_HANDLE, "a default stream cannot be destroyed");
    }
    if (call.driver.streams.WasRemoved(handle)) {
      return call.Wrong(FAKE_CUDA_DOUBLE_FREE, CUDA_ERROR_INVALID_HANDLE,
                        Format("stream %p was destroyed", static_cast<void*>(handle)));
    }
    StreamPtr stream;
    CUresult code = FindStream(call, handle, StreamUse::kAnyContext, &stream);
    if (code != CUDA_SUCCESS) return code;
    if (CapturePtr capture = stream->capture; capture != nullptr) {
      Invalidate(call, capture, CUDA_SUCCESS, "a stream is destroyed that is capturing");
      if (capture->origin == stream) EndCapture(call.driver, capture);
    }
    stream->Retire();
    call.driver.streams.Remove(handle);
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) {
  return Enter("cuStreamGetCtx", kContext, [&](Call& call) -> CUresult {
    if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
    StreamPtr stream = call.driver.streams.Find(handle);  // with any context current
    if (stream == nullptr) {
      CUresult code = FindStream(call, handle, StreamUse::kAnyContext, &stream);
      if (code != CUDA_SUCCESS) return code;
    }
    *context = stream->context->handle;
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamGetFlags(CUstream handle, unsigned int* flags) {
  return Enter("cuStreamGetFlags", kContext, [&](Call& call) -> CUresult {
    if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
    StreamPtr stream;
    CUresult code = FindStream(call, handle, StreamUse::kAnyContext, &stream);
    if (code != CUDA_SUCCESS) return code;
    *flags = stream->blocking ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING;
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamSynchronize(CUstream handle) {
  return Enter("cuStreamSynchronize", kContext, [&](Call& call) -> CUresult {
    StreamPtr stream;
    CUresult code = FindStream(call, handle, StreamUse::kAnyContext, &stream);
    if (code != CUDA_SUCCESS) return code;
    if (stream->capture != nullptr) {
      return Invalidate(call, stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                        "waits for a stream that captures");
    }
    if (code = CheckImplicitCapture(call, stream); code != CUDA_SUCCESS) return code;
    Finish(call.driver, call.lock, stream->last);
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamQuery(CUstream handle) {
  return Enter("cuStreamQuery", kContext, [&](Call& call) -> CUresult {
    StreamPtr stream;
    CUresult code = FindStream(call, handle, StreamUse::kAnyContext, &stream);
    if (code != CUDA_SUCCESS) return code;
    if (stream->capture != nullptr) {
      return Invalidate(call, stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "asks a stream that captures");
    }
    return Query(call.driver, call.lock, stream->last, &stream->asked) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  });
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned int flags) {
  return Enter("cuStreamWaitEvent", kContext, [&](Call& call) -> CUresult {
    if (flags > 1) return CUDA_ERROR_INVALID_VALUE;  // 1: CU_EVENT_WAIT_EXTERNAL
    StreamPtr stream;
    EventPtr event;
    CUresult code = FindStream(call, handle, StreamUse::kAnyContext, &stream);
    if (code != CUDA_SUCCESS) return code;
    if (code = FindEvent(call, event_handle, &event); code != CUDA_SUCCESS) return code;
    if (stream->capture != nullptr || event->capture != nullptr) return CaptureWait(call, stream, event);
    if (event->recorded == nullptr) return CUDA_SUCCESS;
    Work marker;
    marker.call = call.name;
    return Enqueue(call, stream, std::move(marker), nullptr, {event->recorded});
  });
}

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void* user) {
  return Enter("cuLaunchHostFunc", kContext, [&](Call& call) -> CUresult {
    if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
    StreamPtr stream;
    CUresult code = FindStream(call, handle, StreamUse::kOwnContext, &stream);
    if (code != CUDA_SUCCESS) return code;
    Work work;
    work.call = call.name;
    work.kind = WorkKind::kHostFunction;
    work.host_function = function;
    work.user = user;
    return Enqueue(call, stream, std::move(work));
  });
}

FAKE_CUDA_ABI_END
