// What the fake driver keeps: contexts, streams, events, memory, work. Plain data; the rules lie in the files named
// after them. All of it is guarded by the one lock of Driver (driver.h), except the bytes of memory.
#ifndef PACKALLOC_TEST_FAKE_CUDA_OBJECTS_H_
#define PACKALLOC_TEST_FAKE_CUDA_OBJECTS_H_

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "test/fake_cuda/fake_cuda.h"

namespace fake_cuda {

struct Stream;
struct Capture;

// --- Contexts
// ----------------------------------------------------------------------------------------------------------

struct Context {
  CUcontext handle = nullptr;
  int device = 0;
  bool primary = false;
  unsigned retains = 1;
  CUresult dead = CUDA_SUCCESS;    // what every call answers after a fatal error
  std::set<const Context*> peers;  // whose memory this context may use
  std::shared_ptr<Stream> legacy;
  std::map<uint64_t, std::shared_ptr<Stream>> per_thread;  // by the driver's number of the thread
};

// --- Memory
// ------------------------------------------------------------------------------------------------------------

struct Pool {
  CUmemoryPool handle = nullptr;
  int device = 0;
  bool is_default = false;
  bool destroyed = false;
  uint64_t release_threshold = 0;
  size_t used = 0, reserved = 0;  // bytes in allocations; bytes held from the device
  size_t used_peak = 0, reserved_peak = 0;
};

enum class MemoryKind { kDevice, kPinned, kRegistered, kManaged };

struct Memory {
  MemoryKind kind = MemoryKind::kDevice;
  uintptr_t begin = 0;
  size_t nbytes = 0;
  std::shared_ptr<Context> context;
  std::shared_ptr<Pool> pool;  // of stream-ordered memory
  uint64_t id = 0;
  unsigned flags = 0;
  std::byte* bytes = nullptr;  // where the bytes lie: see ReadBytes
  void* mapping = nullptr;     // pinned and managed: what to unmap
  size_t mapped = 0;
  bool live = true;
  const char* freed_by = nullptr;

  bool host_accessible() const { return kind != MemoryKind::kDevice; }
  uintptr_t end() const { return begin + nbytes; }
};
using MemoryPtr = std::shared_ptr<Memory>;

// --- Work
// --------------------------------------------------------------------------------------------------------------

struct Range {
  uintptr_t begin = 0;
  size_t nbytes = 0;
  bool writes = false;
  MemoryPtr memory;  // null: pageable host memory
};

enum class WorkKind { kMarker, kCopy, kFill, kKernel, kHostFunction, kAlloc, kFree };

// What is enqueued: also a node of a captured graph.
struct Work {
  const char* call = "";  // the entry point, for messages
  WorkKind kind = WorkKind::kMarker;
  // kCopy: ranges[0] is the destination, ranges[1] the source. kFill, kAlloc, kFree: ranges[0]. kKernel: what it
  // declared.
  std::vector<Range> ranges;
  uint32_t value = 0;  // kFill: the value and its width in bytes
  unsigned width = 1;
  bool pageable_now = false;  // a copy that treats pageable memory as consumed or filled when the call returns
  CUhostFn host_function = nullptr;
  fake_cuda_kernel_function kernel = nullptr;
  void* user = nullptr;
};

// Which work of which stream comes before: the sequence number of the last one by stream.
using Clock = std::map<uint64_t, uint64_t>;

enum class OpState { kPending, kRunning, kExecuted };

struct Op : Work {
  uint64_t sequence = 0;
  std::shared_ptr<Stream> stream;
  uint64_t stream_id = 0;
  std::vector<std::shared_ptr<Op>> dependencies;  // not executed when this was enqueued
  Clock before;                                   // what is ordered before, itself included
  OpState state = OpState::kPending;
  bool known_done = false;  // the host has synchronized with it

  // A source in host memory: its bytes when enqueued, until the host may change them.
  std::vector<std::byte> watched;
  bool consumed = false;  // `watched` is what is copied; the source is the host's again
  // A destination in host memory: the bytes held back until the host synchronizes.
  std::vector<std::byte> held;

  bool OrderedBefore(const Op& later) const {
    auto at = later.before.find(stream_id);
    return known_done || (at != later.before.end() && at->second >= sequence);
  }
};
using OpPtr = std::shared_ptr<Op>;

struct Stream {
  CUstream handle = nullptr;
  uint64_t id = 0;
  std::shared_ptr<Context> context;
  bool blocking = true;  // takes part in the legacy stream's order
  bool legacy = false;
  OpPtr last;
  std::shared_ptr<Capture> capture;  // where it is capturing
  OpPtr asked;                       // the operation that cuStreamQuery answered "not ready" for

  // Breaks the circles through what it points to; nothing is enqueued on it any more.
  void Retire() {
    last = asked = nullptr;
    capture = nullptr;
  }
};
using StreamPtr = std::shared_ptr<Stream>;

struct Event {
  CUevent handle = nullptr;
  std::shared_ptr<Context> context;
  unsigned flags = 0;
  OpPtr recorded;
  OpPtr asked;                       // the operation that cuEventQuery answered "not ready" for
  std::shared_ptr<Capture> capture;  // recorded in a capture,
  Clock capture_clock;               // after these nodes
};
using EventPtr = std::shared_ptr<Event>;

// --- Captures
// ----------------------------------------------------------------------------------------------------------

struct Graph {
  CUgraph handle = nullptr;
  std::vector<Work> nodes;  // in an order that keeps all dependencies
};

struct Capture {
  uint64_t id = 0;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  uint64_t thread = 0;  // that began it
  StreamPtr origin;
  std::map<StreamPtr, Clock> members;  // the origin and what was forked from it: the nodes that each is ordered after
  bool invalidated = false;
  std::shared_ptr<Graph> graph;
};
using CapturePtr = std::shared_ptr<Capture>;

// --- Handles
// -----------------------------------------------------------------------------------------------------------

// Handle values are numbers that nobody can dereference, and never used twice.
template <typename Handle, typename T>
class HandleTable {
 public:
  Handle Add(std::shared_ptr<T> object, uintptr_t number) {
    auto handle = reinterpret_cast<Handle>(number);
    objects_[handle] = std::move(object);
    return handle;
  }
  std::shared_ptr<T> Find(Handle handle) const {
    auto at = objects_.find(handle);
    return at == objects_.end() ? nullptr : at->second;
  }
  void Remove(Handle handle) {
    if (objects_.erase(handle) != 0) dead_.insert(handle);
  }
  bool WasRemoved(Handle handle) const { return dead_.count(handle) != 0; }
  void Clear() {
    for (auto& [handle, object] : objects_) dead_.insert(handle);
    objects_.clear();
  }
  const std::map<Handle, std::shared_ptr<T>>& all() const { return objects_; }
  size_t size() const { return objects_.size(); }

 private:
  std::map<Handle, std::shared_ptr<T>> objects_;
  std::set<Handle> dead_;
};

}  // namespace fake_cuda

#endif  // PACKALLOC_TEST_FAKE_CUDA_OBJECTS_H_
