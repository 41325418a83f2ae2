// The driver as a whole: its one lock, its tables, and what every entry point does first and last.
#ifndef PACKALLOC_TEST_FAKE_CUDA_DRIVER_H_
#define PACKALLOC_TEST_FAKE_CUDA_DRIVER_H_

#include <sys/types.h>

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "test/fake_cuda/memory.h"
#include "test/fake_cuda/objects.h"
#include "test/fake_cuda/report.h"
#include "test/fake_cuda/settings.h"

namespace fake_cuda {

// What an entry point needs.
enum : unsigned {
  kAnytime = 1,  // works before cuInit and in a forked child
  kContext = 2,  // needs a current context that is not dead
  kUnsafe = 4,   // forbidden while a capture is under way that this thread has to respect
};

// The state of one thread. Trivial, so that no destructor runs when a thread or the process ends.
struct Thread {
  static constexpr int kDepth = 32;
  uint64_t id;
  uint64_t epoch;  // of Driver when the stack was last used: a reset empties the stacks of all threads
  int depth;
  CUcontext stack[kDepth];
  CUstreamCaptureMode capture_mode;
};

struct Driver {
  static Driver& Get();
  // Of the calling thread; call with the lock held.
  Thread& ThisThread();
  std::shared_ptr<Context> Current();

  void Violation(fake_cuda_kind kind, const std::string& what) { report.Add(settings, kind, what); }
  // Reports what is alive; returns how many.
  uint64_t ReportLeaks(bool with_contexts);
  // Forgets all; see fake_cuda_reset.
  void Reset();
  uintptr_t NextHandle() { return next_handle += 16; }
  bool forked() const;

  std::mutex mutex;
  std::condition_variable changed;  // an operation was executed, or enqueued for the worker
  Settings settings = SettingsFromEnvironment();
  Report report;
  std::map<uint64_t, std::string> handed_out;  // by fake_cuda_report, by thread
  std::map<std::string, uint64_t> calls;
  uint64_t failures_made = 0;
  uint64_t calls_when_gone = 0;
  bool initialized = false;
  bool gone = false;  // after the exit handler, in mode GONE_AT_EXIT
  bool exiting = false;
  pid_t process = 0;  // that called cuInit
  uint64_t epoch = 1;
  uint64_t next_thread = 0;
  uintptr_t next_handle = 0x1000;

  Memories memories;
  size_t used[kMaxDevices] = {};  // bytes of each device, what pools hold included
  size_t pinned = 0;
  std::shared_ptr<Context> primary[kMaxDevices];
  std::shared_ptr<Pool> default_pool[kMaxDevices];
  HandleTable<CUcontext, Context> contexts;
  HandleTable<CUstream, Stream> streams;
  HandleTable<CUevent, Event> events;
  HandleTable<CUmemoryPool, Pool> pools;
  HandleTable<CUgraph, Graph> graphs;
  HandleTable<CUgraphExec, Graph> executables;

  // Work that the host does not know to be done, oldest first.
  std::vector<OpPtr> unfinished;
  uint64_t next_sequence = 0;
  uint64_t next_stream = 0;
  std::vector<CapturePtr> captures;  // under way
  uint64_t next_capture = 0;
  std::thread worker;
  bool worker_stops = false;
};

// One call of an entry point, with the driver's lock held.
struct Call {
  const char* name;
  Driver& driver;
  std::unique_lock<std::mutex>& lock;
  std::shared_ptr<Context> context;  // the current one

  // Reports a violation and returns `code`.
  CUresult Wrong(fake_cuda_kind kind, CUresult code, const std::string& what) {
    driver.Violation(kind, std::string(name) + ": " + what);
    return code;
  }
};

// What every call does first: counting, modes, injected failures, the context. Not CUDA_SUCCESS: the call returns it.
CUresult BeginCall(Call& call, unsigned needs);

// Runs body(call) under the lock as the entry point `name`.
template <typename Body>
CUresult Enter(const char* name, unsigned needs, Body body) noexcept {
  try {
    Driver& driver = Driver::Get();
    std::unique_lock lock(driver.mutex);
    Call call{name, driver, lock, nullptr};
    if (CUresult code = BeginCall(call, needs); code != CUDA_SUCCESS) return code;
    return body(call);
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  } catch (...) {
    return CUDA_ERROR_UNKNOWN;
  }
}

}  // namespace fake_cuda

#endif  // PACKALLOC_TEST_FAKE_CUDA_DRIVER_H_
