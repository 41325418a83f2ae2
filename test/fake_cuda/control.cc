// fake_cuda.h.
#include <algorithm>
#include <cstring>

#include "test/fake_cuda/fake_cuda.h"
#include "test/fake_cuda/pool.h"
#include "test/fake_cuda/work.h"

namespace {

using fake_cuda::Driver;
using fake_cuda::Lock;
using fake_cuda::MemoryKind;
using fake_cuda::MemoryPtr;

// change(settings) under the lock.
template <typename Change>
void Set(Change change) {
  Driver& driver = Driver::Get();
  Lock lock(driver.mutex);
  change(driver.settings);
}

// get(driver) under the lock.
template <typename Get>
auto Ask(Get get) {
  Driver& driver = Driver::Get();
  Lock lock(driver.mutex);
  return get(driver);
}

uint64_t LiveMemory(const Driver& driver, MemoryKind kind) {
  const auto& all = driver.memories.all();
  return static_cast<uint64_t>(std::count_if(
      all.begin(), all.end(), [&](const auto& entry) { return entry.second->live && entry.second->kind == kind; }));
}

uint64_t MadePools(const Driver& driver) {
  const auto& all = driver.pools.all();
  return static_cast<uint64_t>(
      std::count_if(all.begin(), all.end(), [](const auto& entry) { return !entry.second->is_default; }));
}

bool IsDevice(int device) { return device >= 0 && device < fake_cuda::kMaxDevices; }

}  // namespace

#pragma GCC visibility push(default)

void fake_cuda_reset(void) {
  Driver& driver = Driver::Get();
  Lock lock(driver.mutex);
  StopWorker(driver, lock);
  driver.Reset();
}

void fake_cuda_set_schedule(fake_cuda_schedule schedule) {
  Driver& driver = Driver::Get();
  Lock lock(driver.mutex);
  if (schedule == driver.settings.schedule) return;
  // The other schedules run work on the threads that call.
  StopWorker(driver, lock);
  driver.settings.schedule = schedule;
}

void fake_cuda_set_pageable(fake_cuda_pageable pageable) {
  Set([&](fake_cuda::Settings& settings) { settings.pageable = pageable; });
}

void fake_cuda_set_mode(fake_cuda_mode mode) {
  Set([&](fake_cuda::Settings& settings) { settings.mode = mode; });
}

void fake_cuda_set_version(int version) {
  Set([&](fake_cuda::Settings& settings) { settings.version = version; });
}

void fake_cuda_set_devices(int count) {
  Set([&](fake_cuda::Settings& settings) { settings.devices = std::clamp(count, 0, fake_cuda::kMaxDevices); });
}

void fake_cuda_set_capacity(int device, size_t bytes) {
  if (!IsDevice(device)) return;
  Set([&](fake_cuda::Settings& settings) { settings.capacity[device] = bytes; });
}

void fake_cuda_set_pinned_capacity(size_t bytes) {
  Set([&](fake_cuda::Settings& settings) { settings.pinned_capacity = bytes; });
}

void fake_cuda_set_peer(int device, int peer, int can_access) {
  Set([&](fake_cuda::Settings& settings) {
    if (can_access) {
      settings.peers.emplace(device, peer);
    } else {
      settings.peers.erase({device, peer});
    }
  });
}

void fake_cuda_set_quiet(int quiet) {
  Set([&](fake_cuda::Settings& settings) { settings.quiet = quiet != 0; });
}

void fake_cuda_fail(const char* function, uint64_t nth, int code) {
  Set([&](fake_cuda::Settings& settings) { settings.failures.push_back({function, nth, code, 0}); });
}

void fake_cuda_clear_failures(void) {
  Set([](fake_cuda::Settings& settings) { settings.failures.clear(); });
}

uint64_t fake_cuda_failures_made(void) {
  return Ask([](Driver& driver) { return driver.failures_made; });
}

uint64_t fake_cuda_calls(const char* function) {
  return Ask([&](Driver& driver) -> uint64_t {
    uint64_t all = 0;
    for (const auto& [name, count] : driver.calls) {
      if (name == function) return count;
      all += count;
    }
    return std::strcmp(function, "*") == 0 ? all : 0;
  });
}

const char* fake_cuda_called(size_t index) {
  return Ask([&](Driver& driver) -> const char* {
    return index < driver.calls.size() ? std::next(driver.calls.begin(), static_cast<ptrdiff_t>(index))->first.c_str()
                                       : nullptr;
  });
}

uint64_t fake_cuda_calls_when_gone(void) {
  return Ask([](Driver& driver) { return driver.calls_when_gone; });
}

uint64_t fake_cuda_violation_count(void) {
  return Ask([](Driver& driver) { return driver.report.count(); });
}

uint64_t fake_cuda_violations_of(fake_cuda_kind kind) {
  return Ask([&](Driver& driver) -> uint64_t {
    return kind >= 0 && kind < FAKE_CUDA_KIND_COUNT ? driver.report.count(kind) : 0;
  });
}

const char* fake_cuda_violation(size_t index) {
  return Ask([&](Driver& driver) { return driver.report.text(index); });
}

const char* fake_cuda_report(void) {
  return Ask([](Driver& driver) {
    std::string& text = driver.handed_out[driver.ThisThread().id];
    text = driver.report.All();
    return text.c_str();
  });
}

void fake_cuda_clear_violations(void) {
  Ask([](Driver& driver) {
    driver.report.Clear();
    return 0;
  });
}

uint64_t fake_cuda_check_leaks(void) {
  return Ask([](Driver& driver) { return driver.ReportLeaks(true); });
}

uint64_t fake_cuda_live(fake_cuda_object kind) {
  return Ask([&](Driver& driver) -> uint64_t {
    switch (kind) {
      case FAKE_CUDA_DEVICE_MEMORY:
        return LiveMemory(driver, MemoryKind::kDevice);
      case FAKE_CUDA_PINNED_MEMORY:
        return LiveMemory(driver, MemoryKind::kPinned);
      case FAKE_CUDA_REGISTERED_MEMORY:
        return LiveMemory(driver, MemoryKind::kRegistered);
      case FAKE_CUDA_MANAGED_MEMORY:
        return LiveMemory(driver, MemoryKind::kManaged);
      case FAKE_CUDA_STREAM:
        return driver.streams.size();
      case FAKE_CUDA_EVENT:
        return driver.events.size();
      case FAKE_CUDA_POOL:
        return MadePools(driver);
      case FAKE_CUDA_GRAPH:
        return driver.graphs.size() + driver.executables.size();
      case FAKE_CUDA_CONTEXT:
        return driver.contexts.size();
      case FAKE_CUDA_OBJECT_COUNT:
        break;
    }
    return 0;
  });
}

size_t fake_cuda_bytes_used(int device) {
  return Ask([&](Driver& driver) -> size_t { return IsDevice(device) ? driver.used[device] : 0; });
}

size_t fake_cuda_pinned_bytes(void) {
  return Ask([](Driver& driver) { return driver.pinned; });
}

int fake_cuda_peek(void* dest, uint64_t address, size_t nbytes) {
  return Ask([&](Driver& driver) {
    MemoryPtr memory = driver.memories.At(address);
    if (memory == nullptr || !memory->live || nbytes > memory->end() - address) return 1;
    ReadBytes(*memory, address, static_cast<std::byte*>(dest), nbytes);
    return 0;
  });
}

#pragma GCC visibility pop
