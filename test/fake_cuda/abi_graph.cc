// Stream capture and the graphs that it makes.
#include <algorithm>

#include "test/fake_cuda/abi.h"

using namespace fake_cuda;

namespace {

std::shared_ptr<Graph> FindGraph(Call& call, CUgraph handle) {
  std::shared_ptr<Graph> graph = call.driver.graphs.Find(handle);
  if (graph == nullptr) {
    bool removed = call.driver.graphs.WasRemoved(handle);
    call.Wrong(removed ? FAKE_CUDA_USE_AFTER_FREE : FAKE_CUDA_BAD_HANDLE, CUDA_ERROR_INVALID_VALUE,
               Format("%p is no graph", static_cast<void*>(handle)));
  }
  return graph;
}

// Every stream that joined the capture has to have been joined to the origin again.
bool AllJoined(const Capture& capture) {
  const Clock& origin = capture.members.at(capture.origin);
  for (const auto& [stream, clock] : capture.members) {
    auto last = clock.find(stream->id);
    if (stream == capture.origin || last == clock.end()) continue;
    auto known = origin.find(stream->id);
    if (known == origin.end() || known->second < last->second) return false;
  }
  return true;
}

CUstreamCaptureStatus Status(const Stream& stream) {
  if (stream.capture == nullptr) return CU_STREAM_CAPTURE_STATUS_NONE;
  return stream.capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

}  // namespace

FAKE_CUDA_ABI_BEGIN

// Newer ones have _v3 in its place.
CUresult cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                   const CUgraphNode** dependencies, size_t* count);

CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
  return Enter("cuStreamBeginCapture_v2", kContext, [&](Call& call) -> CUresult {
    StreamPtr stream;
    CUresult code = FindStream(call, handle, StreamUse::kAnyContext, &stream);
    if (code != CUDA_SUCCESS) return code;
    if (stream->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture != nullptr) return CUDA_ERROR_ILLEGAL_STATE;
    auto capture = std::make_shared<Capture>();
    capture->id = ++call.driver.next_capture;
    capture->mode = mode;
    capture->thread = call.driver.ThisThread().id;
    capture->origin = stream;
    capture->members[stream];
    capture->graph = std::make_shared<Graph>();
    stream->capture = capture;
    call.driver.captures.push_back(std::move(capture));
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  return Enter("cuStreamEndCapture", kContext, [&](Call& call) -> CUresult {
    if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *graph = nullptr;
    StreamPtr stream;
    CUresult code = FindStream(call, handle, StreamUse::kAnyContext, &stream);
    if (code != CUDA_SUCCESS) return code;
    CapturePtr capture = stream->capture;
    if (capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->origin != stream) {
      return Invalidate(call, capture, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "the capture began on another stream");
    }
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != call.driver.ThisThread().id) {
      return Invalidate(call, capture, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "the capture began on another thread");
    }
    EndCapture(call.driver, capture);
    if (capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (!AllJoined(*capture)) {
      return call.Wrong(FAKE_CUDA_CAPTURE, CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
                        "a stream was forked into the capture and not joined to its origin again");
    }
    *graph = capture->graph->handle = call.driver.graphs.Add(capture->graph, call.driver.NextHandle());
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  return Enter("cuStreamIsCapturing", kContext, [&](Call& call) -> CUresult {
    if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
    StreamPtr stream;
    CUresult code = FindStream(call, handle, StreamUse::kAnyContext, &stream);
    if (code != CUDA_SUCCESS) return code;
    if (code = CheckImplicitCapture(call, stream); code != CUDA_SUCCESS) return code;
    *status = Status(*stream);
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                   const CUgraphNode** dependencies, size_t* count) {
  return Enter("cuStreamGetCaptureInfo_v2", kContext, [&](Call& call) -> CUresult {
    if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
    StreamPtr stream;
    CUresult code = FindStream(call, handle, StreamUse::kAnyContext, &stream);
    if (code != CUDA_SUCCESS) return code;
    if (code = CheckImplicitCapture(call, stream); code != CUDA_SUCCESS) return code;
    *status = Status(*stream);
    if (id != nullptr && stream->capture != nullptr) *id = stream->capture->id;
    if (graph != nullptr) *graph = nullptr;  // there are no nodes that could be handed out
    if (dependencies != nullptr) *dependencies = nullptr;
    if (count != nullptr) *count = 0;
    return CUDA_SUCCESS;
  });
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  return Enter("cuThreadExchangeStreamCaptureMode", 0, [&](Call& call) -> CUresult {
    if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::swap(call.driver.ThisThread().capture_mode, *mode);
    return CUDA_SUCCESS;
  });
}

// Only the number of nodes: they have no handles.
CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
  return Enter("cuGraphGetNodes", 0, [&](Call& call) -> CUresult {
    std::shared_ptr<Graph> graph = FindGraph(call, handle);
    if (graph == nullptr || count == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (nodes != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
    *count = graph->nodes.size();
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph handle, unsigned long long) {
  return Enter("cuGraphInstantiateWithFlags", 0, [&](Call& call) -> CUresult {
    std::shared_ptr<Graph> graph = FindGraph(call, handle);
    if (graph == nullptr || executable == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *executable = call.driver.executables.Add(std::make_shared<Graph>(*graph), call.driver.NextHandle());
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphLaunch(CUgraphExec executable, CUstream handle) {
  return Enter("cuGraphLaunch", kContext, [&](Call& call) -> CUresult {
    std::shared_ptr<Graph> graph = call.driver.executables.Find(executable);
    if (graph == nullptr) {
      bool removed = call.driver.executables.WasRemoved(executable);
      return call.Wrong(removed ? FAKE_CUDA_USE_AFTER_FREE : FAKE_CUDA_BAD_HANDLE, CUDA_ERROR_INVALID_VALUE,
                        Format("%p is no executable graph", static_cast<void*>(executable)));
    }
    StreamPtr stream;
    CUresult code = FindStream(call, handle, StreamUse::kOwnContext, &stream);
    if (code != CUDA_SUCCESS) return code;
    for (const Work& node : graph->nodes) {
      for (const Range& range : node.ranges) {
        if (range.memory->live) continue;
        return call.Wrong(FAKE_CUDA_USE_AFTER_FREE, CUDA_ERROR_INVALID_VALUE,
                          Format("the graph's %s uses 0x%zx, which %s freed", node.call,
                                 static_cast<size_t>(range.begin), range.memory->freed_by));
      }
    }
    for (const Work& node : graph->nodes) {
      if (code = Enqueue(call, stream, node); code != CUDA_SUCCESS) return code;
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphExecDestroy(CUgraphExec executable) {
  return Enter("cuGraphExecDestroy", 0, [&](Call& call) -> CUresult {
    if (call.driver.executables.Find(executable) == nullptr) {
      return call.Wrong(FAKE_CUDA_DOUBLE_FREE, CUDA_ERROR_INVALID_VALUE,
                        Format("%p is no executable graph", static_cast<void*>(executable)));
    }
    call.driver.executables.Remove(executable);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphDestroy(CUgraph handle) {
  return Enter("cuGraphDestroy", 0, [&](Call& call) -> CUresult {
    if (call.driver.graphs.WasRemoved(handle)) {
      return call.Wrong(FAKE_CUDA_DOUBLE_FREE, CUDA_ERROR_INVALID_VALUE,
                        Format("graph %p was destroyed", static_cast<void*>(handle)));
    }
    if (FindGraph(call, handle) == nullptr) return CUDA_ERROR_INVALID_VALUE;
    call.driver.graphs.Remove(handle);
    return CUDA_SUCCESS;
  });
}

FAKE_CUDA_ABI_END
