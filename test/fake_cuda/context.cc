#include "test/fake_cuda/context.h"

#include "test/fake_cuda/capture.h"
#include "test/fake_cuda/work.h"

namespace fake_cuda {

std::shared_ptr<Context> NewContext(Driver& driver, int device, bool primary) {
  auto context = std::make_shared<Context>();
  context->device = device;
  context->primary = primary;
  context->handle = driver.contexts.Add(context, driver.NextHandle());
  return context;
}

void EndContext(Call& call, const std::shared_ptr<Context>& context) {
  Driver& driver = call.driver;
  FinishContext(driver, call.lock, context.get());
  auto leak = [&](const std::string& what) {
    if (context->dead != CUDA_SUCCESS) return;
    call.Wrong(FAKE_CUDA_LEAK, CUDA_SUCCESS, "the context ends with " + what);
  };
  std::vector<MemoryPtr> memories;
  for (const auto& [begin, memory] : driver.memories.all()) {
    bool portable = memory->kind == MemoryKind::kPinned || memory->kind == MemoryKind::kRegistered;
    if (memory->live && memory->context == context && memory->pool == nullptr && !portable) memories.push_back(memory);
  }
  for (const MemoryPtr& memory : memories) {
    leak(Format("%zu bytes at 0x%zx that were never freed", memory->nbytes, static_cast<size_t>(memory->begin)));
    driver.used[context->device] -= memory->nbytes;
    driver.memories.End(memory, "the end of its context");
  }
  std::vector<CUstream> streams;
  for (const auto& [handle, stream] : driver.streams.all()) {
    if (stream->context == context) streams.push_back(handle);
  }
  for (CUstream stream : streams) {
    leak(Format("stream %p that was never destroyed", static_cast<void*>(stream)));
    StreamPtr ended = driver.streams.Find(stream);
    if (ended->capture != nullptr) EndCapture(driver, ended->capture);
    ended->Retire();
    driver.streams.Remove(stream);
  }
  std::vector<CUevent> events;
  for (const auto& [handle, event] : driver.events.all()) {
    if (event->context == context) events.push_back(handle);
  }
  for (CUevent event : events) {
    leak(Format("event %p that was never destroyed", static_cast<void*>(event)));
    driver.events.Remove(event);
  }
  RetireDefaultStreams(*context);
  driver.contexts.Remove(context->handle);
}

void RetireDefaultStreams(Context& context) {
  if (context.legacy != nullptr) context.legacy->Retire();
  context.legacy = nullptr;
  for (auto& [thread, stream] : context.per_thread) stream->Retire();
  context.per_thread.clear();
}

}  // namespace fake_cuda
