#include "test/fake_cuda/work.h"

#include <algorithm>
#include <set>

#include "test/fake_cuda/capture.h"
#include "test/fake_cuda/pool.h"

namespace fake_cuda {
namespace {

constexpr size_t kFillChunk = 64 << 10;

void Merge(const Clock& from, Clock* into) {
  for (const auto& [stream, sequence] : from) {
    uint64_t& known = (*into)[stream];
    known = std::max(known, sequence);
  }
}

void DependOn(const OpPtr& earlier, Op* op) {
  if (earlier == nullptr || earlier->known_done) return;
  Merge(earlier->before, &op->before);
  if (earlier->state != OpState::kExecuted) op->dependencies.push_back(earlier);
}

// In-stream order, events, and the legacy stream: it waits for all blocking streams of its context, and they for it.
void Order(Driver& driver, const std::vector<OpPtr>& after, Op* op) {
  DependOn(op->stream->last, op);
  for (const OpPtr& earlier : after) DependOn(earlier, op);
  if (op->stream->blocking) {
    for (const OpPtr& earlier : driver.unfinished) {
      const Stream& other = *earlier->stream;
      if (other.context == op->stream->context && other.blocking && (other.legacy || op->stream->legacy)) {
        DependOn(earlier, op);
      }
    }
  }
  op->before[op->stream_id] = op->sequence;
}

void CheckUnordered(Call& call, const Op& op) {
  for (const OpPtr& other : call.driver.unfinished) {
    if (other->OrderedBefore(op)) continue;
    for (const Range& a : op.ranges) {
      for (const Range& b : other->ranges) {
        if ((a.writes || b.writes) && a.begin < b.begin + b.nbytes && b.begin < a.begin + a.nbytes) {
          call.Wrong(
              FAKE_CUDA_UNORDERED, CUDA_SUCCESS,
              Format("%s 0x%zx (%zu bytes) on stream %p, unordered with %s that %s 0x%zx (%zu bytes) on stream %p",
                     a.writes ? "writes" : "reads", static_cast<size_t>(a.begin), a.nbytes,
                     static_cast<void*>(op.stream->handle), other->call, b.writes ? "writes" : "reads",
                     static_cast<size_t>(b.begin), b.nbytes, static_cast<void*>(other->stream->handle)));
          return;
        }
      }
    }
  }
}

void Fill(const Op& op) {
  const Range& range = op.ranges[0];
  std::vector<std::byte> chunk(std::min(range.nbytes, kFillChunk));
  for (size_t i = 0; i < chunk.size(); ++i) chunk[i] = static_cast<std::byte>(op.value >> 8 * (i % op.width));
  for (size_t done = 0; done < range.nbytes; done += chunk.size()) {
    WriteBytes(*range.memory, range.begin + done, chunk.data(), std::min(chunk.size(), range.nbytes - done));
  }
}

void Copy(Driver& driver, Lock& lock, const OpPtr& op) {
  std::vector<std::byte> bytes;
  bool readable = ReadSource(*op, &bytes);
  const Range& dest = op->ranges[0];
  bool to_host = dest.memory == nullptr || dest.memory->host_accessible();
  if (!to_host) WriteBytes(*dest.memory, dest.begin, bytes.data(), dest.nbytes);
  lock.lock();
  CheckSource(driver, op.get(), bytes, readable);
  if (to_host) op->held = std::move(bytes);
  lock.unlock();
}

// Everything ordered before `op` is executed; the host now knows.
void MarkBefore(Driver& driver, const Op& op, bool itself) {
  std::vector<OpPtr> left;
  for (const OpPtr& earlier : driver.unfinished) {
    if (earlier->OrderedBefore(op) && (itself || earlier.get() != &op)) {
      Settle(driver, earlier);
      earlier->known_done = true;
    } else {
      left.push_back(earlier);
    }
  }
  driver.unfinished = std::move(left);
}

void Run(Driver& driver, Lock& lock, const OpPtr& op) {
  op->state = OpState::kRunning;
  // The function may tell the host that the work before it is done.
  if (op->kind == WorkKind::kHostFunction) MarkBefore(driver, *op, false);
  lock.unlock();
  switch (op->kind) {
    case WorkKind::kCopy:
      Copy(driver, lock, op);
      break;
    case WorkKind::kFill:
      Fill(*op);
      break;
    case WorkKind::kKernel: {
      fake_cuda_kernel kernel{op.get()};
      op->kernel(&kernel, op->user);
      break;
    }
    case WorkKind::kHostFunction:
      op->host_function(op->user);
      break;
    case WorkKind::kMarker:
    case WorkKind::kAlloc:
    case WorkKind::kFree:
      break;
  }
  lock.lock();
  if (op->kind == WorkKind::kFree) ReturnToPool(driver, op->ranges[0].memory, op->call);
  op->state = OpState::kExecuted;
  op->dependencies.clear();
  driver.changed.notify_all();
}

void WorkerLoop(Driver& driver) {
  Lock lock(driver.mutex);
  while (!driver.worker_stops) {
    // The oldest: what it depends on is older still, so it is executed.
    auto next = std::find_if(driver.unfinished.begin(), driver.unfinished.end(),
                             [](const OpPtr& op) { return op->state == OpState::kPending; });
    if (next == driver.unfinished.end()) {
      driver.changed.wait(lock);
    } else {
      OpPtr op = *next;
      Run(driver, lock, op);
    }
  }
}

}  // namespace

CUresult Enqueue(Call& call, const StreamPtr& stream, Work work, OpPtr* out, std::vector<OpPtr> after) {
  Driver& driver = call.driver;
  if (stream->capture != nullptr) return AddNode(call, stream, std::move(work));
  if (CUresult code = CheckImplicitCapture(call, stream); code != CUDA_SUCCESS) return code;
  SettleHostConflicts(call, work);
  auto op = std::make_shared<Op>();
  static_cast<Work&>(*op) = std::move(work);
  op->sequence = ++driver.next_sequence;
  op->stream = stream;
  op->stream_id = stream->id;
  Order(driver, after, op.get());
  CheckUnordered(call, *op);
  CoverHostRanges(driver, op);
  driver.unfinished.push_back(op);
  stream->last = op;
  if (out != nullptr) *out = op;
  switch (driver.settings.schedule) {
    case FAKE_CUDA_LAZY:
      break;
    case FAKE_CUDA_EAGER:
      Demand(driver, call.lock, op);
      break;
    case FAKE_CUDA_WORKER:
      if (!driver.worker.joinable() && !driver.exiting) {
        driver.worker_stops = false;
        driver.worker = std::thread([&driver] { WorkerLoop(driver); });
      }
      driver.changed.notify_all();
      break;
  }
  return CUDA_SUCCESS;
}

void Demand(Driver& driver, Lock& lock, OpPtr op) {
  // What is left of the operations before it, oldest first. A loop, not a recursion: chains are long.
  struct Older {
    bool operator()(const OpPtr& a, const OpPtr& b) const { return a->sequence < b->sequence; }
  };
  std::set<OpPtr, Older> todo;
  std::vector<OpPtr> open = {op};
  while (!open.empty()) {
    OpPtr next = open.back();
    open.pop_back();
    if (next->state == OpState::kExecuted || !todo.insert(next).second) continue;
    open.insert(open.end(), next->dependencies.begin(), next->dependencies.end());
  }
  for (const OpPtr& next : todo) {
    while (next->state != OpState::kExecuted) {
      if (next->state == OpState::kPending && !driver.worker.joinable()) {
        Run(driver, lock, next);
      } else {
        driver.changed.wait(lock);
      }
    }
  }
}

void Finish(Driver& driver, Lock& lock, OpPtr op) {
  if (op == nullptr) return;
  Demand(driver, lock, op);
  MarkBefore(driver, *op, true);
  TrimPoolsToThreshold(driver);
}

void FinishContext(Driver& driver, Lock& lock, const Context* context) {
  std::vector<OpPtr> todo;
  for (const OpPtr& op : driver.unfinished) {
    if (context == nullptr || op->stream->context.get() == context) todo.push_back(op);
  }
  for (const OpPtr& op : todo) Finish(driver, lock, op);
}

bool Query(Driver& driver, Lock& lock, OpPtr op, OpPtr* asked) {
  if (op != nullptr && op->state != OpState::kExecuted) {
    if (*asked != op) {
      *asked = op;
      return false;
    }
  }
  Finish(driver, lock, op);
  return true;
}

void FinishBeforeFree(Call& call, const MemoryPtr& memory) {
  // First, because the lock is given up below: of two threads that free it one is too late.
  memory->live = false;
  memory->freed_by = call.name;
  std::vector<OpPtr> todo;
  for (const OpPtr& op : call.driver.unfinished) {
    if (std::any_of(op->ranges.begin(), op->ranges.end(), [&](const Range& range) { return range.memory == memory; })) {
      todo.push_back(op);
    }
  }
  if (todo.empty()) return;
  call.Wrong(FAKE_CUDA_PENDING_WORK, CUDA_SUCCESS,
             Format("0x%zx (%zu bytes) is freed while %zu operation(s) on it, the first %s, are not known to be done",
                    static_cast<size_t>(memory->begin), memory->nbytes, todo.size(), todo.front()->call));
  for (const OpPtr& op : todo) Finish(call.driver, call.lock, op);
}

void StopWorker(Driver& driver, Lock& lock) {
  if (!driver.worker.joinable()) return;
  driver.worker_stops = true;
  driver.changed.notify_all();
  std::thread worker = std::move(driver.worker);
  lock.unlock();
  worker.join();
  lock.lock();
}

}  // namespace fake_cuda
