#include "tools/replay.h"

#include <algorithm>
#include <any>
#include <chrono>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "packalloc/layers/lru.h"
#include "packalloc/packed_allocator.h"
#include "packalloc/registry.h"
#include "tools/trace_reader.h"

namespace packalloc {
namespace {

constexpr std::size_t kChunk = 4096;  // events that are read before they are run

// The live buffers of a trace on a device. Frees what is left.
class Run {
 public:
  explicit Run(PackedAllocator device) : device_(std::move(device)) {}
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;
  ~Run() { FreeAll().IgnoreError(); }

  absl::Status Do(const TraceEvent& event) {
    switch (event.action) {
      case TraceEvent::Action::kAllocate: {
        absl::StatusOr<AnyBuf> buf = device_.alloc(event.size);
        if (!buf.ok()) return buf.status();
        buffers_[event.slot] = *std::move(buf);
        return absl::OkStatus();
      }
      case TraceEvent::Action::kFree: {
        const AnyBuf buf = std::move(buffers_[event.slot]);
        return device_.free(buf, event.size);
      }
      case TraceEvent::Action::kAllocateFailure:
        break;
    }
    return absl::OkStatus();
  }

  // So that no operation has to grow the table while it is measured.
  void MakeRoom(const std::vector<TraceEvent>& events) {
    for (const TraceEvent& event : events) {
      if (event.slot >= buffers_.size()) buffers_.resize(event.slot + 1);
    }
  }

  absl::Status FreeAll() {
    absl::Status first;
    for (AnyBuf& buf : buffers_) {
      if (buf.empty()) continue;
      const AnyBuf taken = std::move(buf);
      first.Update(device_.free(taken, taken.nbytes()));
    }
    return first;
  }

  const PackedAllocator& device() const { return device_; }

 private:
  PackedAllocator device_;
  std::vector<AnyBuf> buffers_;
};

// Runs the whole trace on a new device: `act` on each chunk of its events. `end` sees the device before what is left is
// freed.
template <typename Act, typename End>
absl::Status RunTrace(const std::string& path, const std::string& device, const std::function<void(double)>& progress,
                      const Act& act, const End& end) {
  absl::StatusOr<TraceReader> reader = TraceReader::Open(path);
  if (!reader.ok()) return reader.status();
  absl::StatusOr<PackedAllocator> opened = Open(device, std::any());
  if (!opened.ok()) return opened.status();
  Run run(*std::move(opened));
  std::vector<TraceEvent> events;
  absl::StatusOr<bool> more = true;
  while (*more) {
    events.clear();
    while (events.size() < kChunk) {
      more = reader->Next(events.emplace_back());
      if (!more.ok()) return more.status();
      if (!*more) {
        events.pop_back();
        break;
      }
    }
    run.MakeRoom(events);
    const TraceEvent* at = nullptr;
    if (absl::Status done = act(run, events, at); !done.ok()) {
      return absl::Status(done.code(), reader->At(at->line, absl::StrCat("on ", device, ": ", done.message())));
    }
    if (reader->bytes_total() > 0) {
      progress(static_cast<double>(reader->bytes_read()) / static_cast<double>(reader->bytes_total()));
    }
  }
  end(run);
  return run.FreeAll();
}

absl::Status Count(const std::string& path, const std::function<void(double)>& progress, ReplayResult& result) {
  std::shared_ptr<LruControl> cache;
  std::uint64_t live_bytes = 0;
  const auto act = [&](Run& run, const std::vector<TraceEvent>& events, const TraceEvent*& at) {
    if (cache == nullptr) cache = Find<LruControl>(run.device());
    for (const TraceEvent& event : events) {
      at = &event;
      if (absl::Status done = run.Do(event); !done.ok()) return done;
      switch (event.action) {
        case TraceEvent::Action::kAllocate:
          ++result.allocations;
          live_bytes += event.size;
          break;
        case TraceEvent::Action::kFree:
          ++result.frees;
          live_bytes -= event.size;
          break;
        case TraceEvent::Action::kAllocateFailure:
          ++result.recorded_failures;
          break;
      }
      result.peak_live_bytes = std::max(result.peak_live_bytes, live_bytes);
      std::uint64_t held_bytes = live_bytes;
      if (cache != nullptr) {
        const LruStats stats = cache->stats();
        held_bytes = stats.in_use_bytes + stats.cached_bytes;
      }
      result.peak_held_bytes = std::max(result.peak_held_bytes, held_bytes);
    }
    return absl::OkStatus();
  };
  return RunTrace(path, result.device, progress, act, [&](Run&) {
    result.live_bytes_end = live_bytes;
    result.misses = result.allocations;
    if (cache == nullptr) return;
    const LruStats stats = cache->stats();
    result.hits = stats.hits;
    result.misses = stats.misses;
    result.evictions = stats.evictions;
    result.cached_bytes_end = stats.cached_bytes;
  });
}

absl::Status Measure(const std::string& path, const std::function<void(double)>& progress, ReplayResult& result) {
  using Clock = std::chrono::steady_clock;
  Clock::duration spent{};
  const auto act = [&](Run& run, const std::vector<TraceEvent>& events, const TraceEvent*& at) {
    const Clock::time_point start = Clock::now();
    for (const TraceEvent& event : events) {
      at = &event;
      if (absl::Status done = run.Do(event); !done.ok()) return done;
    }
    spent += Clock::now() - start;
    return absl::OkStatus();
  };
  absl::Status ran = RunTrace(path, result.device, progress, act, [](Run&) {});
  const std::uint64_t operations = result.allocations + result.frees;
  if (operations > 0) {
    result.ns_per_op = std::chrono::duration<double, std::nano>(spent).count() / static_cast<double>(operations);
  }
  return ran;
}

}  // namespace

absl::StatusOr<ReplayResult> Replay(const std::string& path, const std::string& device,
                                    const std::function<void(double part)>& progress) {
  ReplayResult result;
  result.device = device;
  if (absl::Status ran = Count(
          path, [&](double part) { progress(part / 2); }, result);
      !ran.ok())
    return ran;
  if (absl::Status ran = Measure(
          path, [&](double part) { progress(0.5 + part / 2); }, result);
      !ran.ok())
    return ran;
  return result;
}

}  // namespace packalloc
