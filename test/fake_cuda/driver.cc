#include "test/fake_cuda/driver.h"

#include <pthread.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "test/fake_cuda/capture.h"
#include "test/fake_cuda/context.h"
#include "test/fake_cuda/work.h"

namespace fake_cuda {
namespace {

thread_local Thread this_thread;

// A child gets the lock in a known state.
void LockBeforeFork() { Driver::Get().mutex.lock(); }
void UnlockInParent() { Driver::Get().mutex.unlock(); }
void UnlockInChild() {
  Driver& driver = Driver::Get();
  new (&driver.worker) std::thread;  // the thread stayed in the parent: neither to be joined nor detached here
  driver.mutex.unlock();
}

// Never destroyed: static objects of the program may call after this library's own destructors.
Driver* NewDriver() {
  pthread_atfork(LockBeforeFork, UnlockInParent, UnlockInChild);
  return new Driver;
}

bool NameMatches(const std::string& rule, const char* name) { return rule == "*" || rule == name; }

CUresult InjectedFailure(Call& call) {
  CUresult code = CUDA_SUCCESS;
  for (Failure& failure : call.driver.settings.failures) {
    if (!NameMatches(failure.function, call.name)) continue;
    ++failure.seen;
    if ((failure.nth == 0 || failure.seen == failure.nth) && code == CUDA_SUCCESS) {
      code = static_cast<CUresult>(failure.code);
    }
  }
  if (code == CUDA_SUCCESS) return code;
  ++call.driver.failures_made;
  if (std::shared_ptr<Context> current = call.driver.Current(); current != nullptr && KillsContext(code)) {
    current->dead = code;
  }
  return code;
}

// The end of the process, or the library is unloaded.
[[gnu::destructor]] void AtUnload() {
  Driver& driver = Driver::Get();
  Lock lock(driver.mutex);
  if (driver.forked()) return;
  driver.exiting = true;
  StopWorker(driver, lock);
  if (!driver.gone && driver.settings.leaks != "none") driver.ReportLeaks(driver.settings.leaks == "all");
  if (driver.calls_when_gone > 0 && !driver.settings.quiet) {
    std::fprintf(stderr, "fake_cuda: %llu calls after the driver was gone\n",
                 static_cast<unsigned long long>(driver.calls_when_gone));
  }
  uint64_t count = driver.report.count();
  if (count == 0) return;
  if (!driver.settings.quiet) {
    std::fprintf(stderr, "fake_cuda: %llu violation(s)\n", static_cast<unsigned long long>(count));
  }
  if (driver.settings.exit_on_violation != 0) {
    std::fflush(nullptr);
    _exit(driver.settings.exit_on_violation);
  }
}

}  // namespace

Driver& Driver::Get() {
  static Driver* driver = NewDriver();
  return *driver;
}

bool Driver::forked() const { return process != 0 && process != getpid(); }

Thread& Driver::ThisThread() {
  if (this_thread.id == 0) this_thread.id = ++next_thread;
  if (this_thread.epoch != epoch) {
    this_thread.epoch = epoch;
    this_thread.depth = 0;
    this_thread.capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  }
  return this_thread;
}

std::shared_ptr<Context> Driver::Current() {
  const Thread& thread = ThisThread();
  return thread.depth == 0 ? nullptr : contexts.Find(thread.stack[thread.depth - 1]);
}

CUresult BeginCall(Call& call, unsigned needs) {
  Driver& driver = call.driver;
  ++driver.calls[call.name];
  if (driver.gone || driver.settings.mode == FAKE_CUDA_MODE_DEINITIALIZED) {
    ++driver.calls_when_gone;
    return CUDA_ERROR_DEINITIALIZED;
  }
  if ((needs & kAnytime) == 0 && driver.forked()) {
    return call.Wrong(FAKE_CUDA_FORKED, CUDA_ERROR_NOT_INITIALIZED,
                      "in a forked child of the process that called cuInit");
  }
  if (CUresult code = InjectedFailure(call); code != CUDA_SUCCESS) return code;
  if (needs & kAnytime) return CUDA_SUCCESS;
  if (!driver.initialized) return call.Wrong(FAKE_CUDA_MISUSE, CUDA_ERROR_NOT_INITIALIZED, "before cuInit");
  call.context = driver.Current();
  if (needs & kContext) {
    if (call.context == nullptr) {
      const char* why =
          driver.ThisThread().depth == 0 ? "no context is current on this thread" : "the current context was destroyed";
      return call.Wrong(FAKE_CUDA_NO_CONTEXT, CUDA_ERROR_INVALID_CONTEXT, why);
    }
    if (call.context->dead != CUDA_SUCCESS) return call.context->dead;
  }
  if (needs & kUnsafe) return CheckUnsafe(call);
  return CUDA_SUCCESS;
}

uint64_t Driver::ReportLeaks(bool with_contexts) {
  uint64_t leaks = 0;
  auto leak = [&](const std::string& what) {
    ++leaks;
    Violation(FAKE_CUDA_LEAK, what);
  };
  auto dead = [](const std::shared_ptr<Context>& context) {
    return context != nullptr && context->dead != CUDA_SUCCESS;
  };
  for (const auto& [begin, memory] : memories.all()) {
    if (!memory->live || dead(memory->context)) continue;
    static constexpr const char* kNames[] = {"device memory", "pinned memory", "registered memory", "managed memory"};
    leak(Format("%zu bytes of %s at 0x%zx were never freed", memory->nbytes, kNames[static_cast<int>(memory->kind)],
                static_cast<size_t>(begin)));
  }
  for (const auto& [handle, stream] : streams.all()) {
    if (!dead(stream->context)) leak(Format("stream %p was never destroyed", static_cast<void*>(handle)));
  }
  for (const auto& [handle, event] : events.all()) {
    if (!dead(event->context)) leak(Format("event %p was never destroyed", static_cast<void*>(handle)));
  }
  for (const auto& [handle, pool] : pools.all()) {
    if (!pool->is_default) leak(Format("memory pool %p was never destroyed", static_cast<void*>(handle)));
  }
  for (const auto& [handle, graph] : graphs.all()) {
    leak(Format("graph %p was never destroyed", static_cast<void*>(handle)));
  }
  for (const auto& [handle, graph] : executables.all()) {
    leak(Format("executable graph %p was never destroyed", static_cast<void*>(handle)));
  }
  if (!with_contexts) return leaks;
  for (const auto& [handle, context] : contexts.all()) {
    if (dead(context)) continue;
    leak(context->primary ? Format("the primary context of device %d is still retained %u time(s)", context->device,
                                   context->retains)
                          : Format("context %p was never destroyed", static_cast<void*>(handle)));
  }
  return leaks;
}

void Driver::Reset() {
  settings = SettingsFromEnvironment();
  report.Clear();
  calls.clear();
  failures_made = calls_when_gone = 0;
  initialized = gone = false;
  process = 0;
  ++epoch;
  unfinished.clear();
  for (const CapturePtr& capture : captures) capture->members.clear();
  captures.clear();
  for (const auto& [handle, stream] : streams.all()) stream->Retire();
  for (const auto& [handle, context] : contexts.all()) RetireDefaultStreams(*context);
  memories.EndAll();
  pinned = 0;
  for (int device = 0; device < kMaxDevices; ++device) {
    used[device] = 0;
    primary[device] = nullptr;
    default_pool[device] = nullptr;
  }
  contexts.Clear();
  streams.Clear();
  events.Clear();
  pools.Clear();
  graphs.Clear();
  executables.Clear();
}

}  // namespace fake_cuda
