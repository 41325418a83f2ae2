// Events.
#include "test/fake_cuda/abi.h"

using namespace fake_cuda;

namespace {

// The host may not ask about an event that belongs to a capture.
CUresult CheckCaptured(Call& call, const EventPtr& event) {
  if (event->capture == nullptr) return CUDA_SUCCESS;
  return Invalidate(call, event->capture, CUDA_ERROR_CAPTURED_EVENT, "an event that was recorded in a capture");
}

}  // namespace

FAKE_CUDA_ABI_BEGIN

CUresult cuEventCreate(CUevent* handle, unsigned int flags) {
  return Enter("cuEventCreate", kContext, [&](Call& call) -> CUresult {
    constexpr unsigned kKnown = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING;
    if (handle == nullptr || (flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
    auto event = std::make_shared<Event>();
    event->context = call.context;
    event->flags = flags;
    *handle = event->handle = call.driver.events.Add(event, call.driver.NextHandle());
    return CUDA_SUCCESS;
  });
}

CUresult cuEventDestroy_v2(CUevent handle) {
  return Enter("cuEventDestroy_v2", kContext, [&](Call& call) -> CUresult {
    if (call.driver.events.WasRemoved(handle)) {
      return call.Wrong(FAKE_CUDA_DOUBLE_FREE, CUDA_ERROR_INVALID_HANDLE,
                        Format("event %p was destroyed", static_cast<void*>(handle)));
    }
    EventPtr event;
    if (CUresult code = FindEvent(call, handle, &event); code != CUDA_SUCCESS) return code;
    call.driver.events.Remove(handle);
    return CUDA_SUCCESS;
  });
}

CUresult cuEventRecord(CUevent handle, CUstream stream_handle) {
  return Enter("cuEventRecord", kContext, [&](Call& call) -> CUresult {
    EventPtr event;
    StreamPtr stream;
    if (CUresult code = FindEvent(call, handle, &event); code != CUDA_SUCCESS) return code;
    CUresult code = FindStream(call, stream_handle, StreamUse::kOwnContext, &stream);
    if (code != CUDA_SUCCESS) return code;
    if (event->context != stream->context) {
      return call.Wrong(FAKE_CUDA_WRONG_CONTEXT, CUDA_ERROR_INVALID_HANDLE,
                        "the event and the stream belong to different contexts");
    }
    if (stream->capture != nullptr) return CaptureRecord(stream, event);
    event->capture = nullptr;
    Work marker;
    marker.call = call.name;
    OpPtr recorded;
    if (code = Enqueue(call, stream, std::move(marker), &recorded); code != CUDA_SUCCESS) return code;
    event->recorded = recorded;
    return CUDA_SUCCESS;
  });
}

CUresult cuEventQuery(CUevent handle) {
  return Enter("cuEventQuery", kUnsafe, [&](Call& call) -> CUresult {
    EventPtr event;
    if (CUresult code = FindEvent(call, handle, &event); code != CUDA_SUCCESS) return code;
    if (CUresult code = CheckCaptured(call, event); code != CUDA_SUCCESS) return code;
    if (event->context->dead != CUDA_SUCCESS) return event->context->dead;
    return Query(call.driver, call.lock, event->recorded, &event->asked) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  });
}

CUresult cuEventSynchronize(CUevent handle) {
  return Enter("cuEventSynchronize", kUnsafe, [&](Call& call) -> CUresult {
    EventPtr event;
    if (CUresult code = FindEvent(call, handle, &event); code != CUDA_SUCCESS) return code;
    if (CUresult code = CheckCaptured(call, event); code != CUDA_SUCCESS) return code;
    if (event->context->dead != CUDA_SUCCESS) return event->context->dead;
    Finish(call.driver, call.lock, event->recorded);
    return CUDA_SUCCESS;
  });
}

FAKE_CUDA_ABI_END
