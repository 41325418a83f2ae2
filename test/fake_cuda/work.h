// Work on streams: how it is ordered, when it runs, and when the host knows that it is done.
//
// "Executed" and "known done" are two things. When an operation is executed depends on the schedule; known done it is
// when the host synchronized with it. What the fake reports (a source changed too early, memory freed under work,
// unordered streams) depends on the second alone, so a misuse is found under every schedule.
#ifndef PACKALLOC_TEST_FAKE_CUDA_WORK_H_
#define PACKALLOC_TEST_FAKE_CUDA_WORK_H_

#include <vector>

#include "test/fake_cuda/driver.h"

struct fake_cuda_kernel {
  fake_cuda::Op* op;
};

namespace fake_cuda {

using Lock = std::unique_lock<std::mutex>;

// Enqueues `work` behind what is on the stream, and behind `after`; in a capture, adds a node. *out gets the operation,
// null for a node.
CUresult Enqueue(Call& call, const StreamPtr& stream, Work work, OpPtr* out = nullptr, std::vector<OpPtr> after = {});

// Runs `op` and what it depends on, or waits for those who do. Gives up the lock meanwhile; so here and below `op` is a
// copy, not the stream's or the event's last operation that another thread may replace.
void Demand(Driver& driver, Lock& lock, OpPtr op);
// The host synchronizes with `op`: demands it, and all that is ordered before it becomes known done. Null: nothing.
void Finish(Driver& driver, Lock& lock, OpPtr op);
// The host synchronizes with all work of a context (null: of all).
void FinishContext(Driver& driver, Lock& lock, const Context* context);
// As cuEventQuery and cuStreamQuery: whether `op` (null: yes) is done. A device makes progress by itself, so the second
// time the same operation is asked for it is; *asked remembers.
bool Query(Driver& driver, Lock& lock, OpPtr op, OpPtr* asked);
// Before `memory` is freed: marks it as such, reports and finishes the work on it that is not known done.
void FinishBeforeFree(Call& call, const MemoryPtr& memory);
// Ends the worker thread, after what it is running.
void StopWorker(Driver& driver, Lock& lock);

// --- work_host.cc: the host's side of copies
// ---------------------------------------------------------------------------

// Before `work` is enqueued: earlier work on the same host memory is executed and its bytes delivered, so that the two
// do not blur what is checked here. (Running work early is always allowed.)
void SettleHostConflicts(Call& call, const Work& work);
// When `op` is enqueued: remembers the bytes of a source, covers a destination.
void CoverHostRanges(Driver& driver, const OpPtr& op);
// When `op` runs, without the lock: the bytes to copy. False where the source cannot be read any more.
bool ReadSource(const Op& op, std::vector<std::byte>* bytes);
// After that, with the lock: reports a source that changed since it was enqueued.
void CheckSource(Driver& driver, Op* op, const std::vector<std::byte>& bytes, bool readable);
// When an executed `op` becomes known done: a last look at the source, and the delivery of what was held back.
void Settle(Driver& driver, const OpPtr& op);

}  // namespace fake_cuda

#endif  // PACKALLOC_TEST_FAKE_CUDA_WORK_H_
