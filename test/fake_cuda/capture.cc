#include "test/fake_cuda/capture.h"

#include <algorithm>

namespace fake_cuda {

CUresult Invalidate(Call& call, const CapturePtr& capture, CUresult code, const std::string& what) {
  capture->invalidated = true;
  return call.Wrong(FAKE_CUDA_CAPTURE, code, what + "; the capture is invalidated");
}

void EndCapture(Driver& driver, const CapturePtr& capture) {
  for (const auto& [stream, clock] : capture->members) stream->capture = nullptr;
  for (const auto& [handle, event] : driver.events.all()) {
    if (event->capture == capture) event->capture = nullptr;
  }
  driver.captures.erase(std::find(driver.captures.begin(), driver.captures.end(), capture));
}

CUresult CheckUnsafe(Call& call) {
  const Thread& thread = call.driver.ThisThread();
  if (thread.capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  CUresult code = CUDA_SUCCESS;
  for (const CapturePtr& capture : call.driver.captures) {
    bool own = capture->thread == thread.id && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    bool global =
        capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && thread.capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (own || global) {
      code = Invalidate(call, capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                        Format("is unsafe while stream %p is capturing", static_cast<void*>(capture->origin->handle)));
    }
  }
  return code;
}

CUresult CheckImplicitCapture(Call& call, const StreamPtr& stream) {
  if (!stream->legacy) return CUDA_SUCCESS;
  for (const CapturePtr& capture : call.driver.captures) {
    for (const auto& [member, clock] : capture->members) {
      if (member->blocking && member->context == stream->context) {
        return Invalidate(call, capture, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
                          Format("work in the legacy stream would wait for stream %p, which is capturing",
                                 static_cast<void*>(member->handle)));
      }
    }
  }
  return CUDA_SUCCESS;
}

CUresult AddNode(Call& call, const StreamPtr& stream, Work work) {
  CapturePtr capture = stream->capture;
  if (capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (work.kind == WorkKind::kAlloc || work.kind == WorkKind::kFree) {
    return Invalidate(call, capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                      "stream-ordered allocation in a capture (which the fake does not have)");
  }
  for (const Range& range : work.ranges) {
    if (range.memory == nullptr) {
      return Invalidate(call, capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                        Format("pageable memory at 0x%zx in a capture", static_cast<size_t>(range.begin)));
    }
  }
  capture->graph->nodes.push_back(std::move(work));
  capture->members[stream][stream->id] = capture->graph->nodes.size();
  return CUDA_SUCCESS;
}

CUresult CaptureRecord(const StreamPtr& stream, const EventPtr& event) {
  if (stream->capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  event->capture = stream->capture;
  event->capture_clock = stream->capture->members[stream];
  return CUDA_SUCCESS;
}

CUresult CaptureWait(Call& call, const StreamPtr& stream, const EventPtr& event) {
  if (event->capture == nullptr) {
    return Invalidate(call, stream->capture, CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
                      "a stream that is capturing waits for an event from outside of the capture");
  }
  if (stream->capture != nullptr && stream->capture != event->capture) {
    Invalidate(call, event->capture, CUDA_ERROR_STREAM_CAPTURE_MERGE, "two captures would be merged");
    return Invalidate(call, stream->capture, CUDA_ERROR_STREAM_CAPTURE_MERGE, "two captures would be merged");
  }
  if (event->capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (stream->legacy) {
    return Invalidate(call, event->capture, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
                      "the legacy stream cannot take part in a capture");
  }
  stream->capture = event->capture;  // joins it, if it was not in it
  Clock& clock = event->capture->members[stream];
  for (const auto& [id, node] : event->capture_clock) clock[id] = std::max(clock[id], node);
  return CUDA_SUCCESS;
}

}  // namespace fake_cuda
