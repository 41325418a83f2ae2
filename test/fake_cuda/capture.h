// Stream capture: which calls it forbids, what it collects, when it is invalidated.
#ifndef PACKALLOC_TEST_FAKE_CUDA_CAPTURE_H_
#define PACKALLOC_TEST_FAKE_CUDA_CAPTURE_H_

#include "test/fake_cuda/driver.h"

namespace fake_cuda {

// A violation, and the end of the capture's hopes: cuStreamEndCapture will answer "invalidated". Returns `code`.
CUresult Invalidate(Call& call, const CapturePtr& capture, CUresult code, const std::string& what);
// Ends a capture: its streams and events are ordinary ones again.
void EndCapture(Driver& driver, const CapturePtr& capture);
// For the calls that CUDA calls unsafe during a capture: forbidden if the calling thread captures (unless relaxed), or
// another one does in global mode.
CUresult CheckUnsafe(Call& call);
// For work in the legacy stream: forbidden while a blocking stream of the context is capturing.
CUresult CheckImplicitCapture(Call& call, const StreamPtr& stream);
// Adds work to the capture that the stream is in.
CUresult AddNode(Call& call, const StreamPtr& stream, Work work);
// An event recorded or waited for where the event or the stream is in a capture.
CUresult CaptureRecord(const StreamPtr& stream, const EventPtr& event);
CUresult CaptureWait(Call& call, const StreamPtr& stream, const EventPtr& event);

}  // namespace fake_cuda

#endif  // PACKALLOC_TEST_FAKE_CUDA_CAPTURE_H_
