// Recorded training runs through the cache: the exact counts.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <unordered_map>

#include "packalloc/layers/lru.h"

namespace packalloc {
namespace {

// Hands out addresses and moves no bytes.
Allocator<std::uintptr_t> Addresses() {
  Allocator<std::uintptr_t> record;
  record.traits.name = "ADDRESSES";
  auto next = std::make_shared<std::uintptr_t>(1);
  record.alloc = [next](std::size_t, const BufferSpec&) -> absl::StatusOr<std::uintptr_t> { return (*next)++; };
  record.free = [](const std::uintptr_t&, std::size_t, const BufferSpec&) { return absl::OkStatus(); };
  record.copyin = [](const std::uintptr_t&, absl::Span<const std::byte>) { return absl::OkStatus(); };
  record.copyout = [](absl::Span<std::byte>, const std::uintptr_t&) { return absl::OkStatus(); };
  record.addr = [](const std::uintptr_t& p) { return DeviceAddress{p, 0}; };
  return record;
}

struct Replayed {
  LruStats stats;
  std::size_t highest_cached = 0;
};

// `watch` reads the statistics after every operation.
Replayed Replay(const std::string& name, const LruOptions& options, bool watch = false) {
  absl::StatusOr<PackedAllocator> device = Lru(*Pack(Addresses()), options);
  REQUIRE(device.ok());
  const auto cache = Find<LruControl>(*device);
  std::ifstream file(PACKALLOC_TRACES "/" + name);
  REQUIRE(file);
  std::unordered_map<std::string, AnyBuf> live;
  Replayed out;
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string thread, time, action, pointer, size;
    for (std::string* field : {&thread, &time, &action, &pointer, &size}) std::getline(fields, *field, ',');
    const std::size_t nbytes = std::stoull(size);
    if (action == "allocate") {
      absl::StatusOr<AnyBuf> buf = device->alloc(nbytes);
      REQUIRE(buf.ok());
      live[pointer] = *buf;
    } else {
      REQUIRE(device->free(live.at(pointer), nbytes).ok());
      live.erase(pointer);
    }
    if (watch) out.highest_cached = std::max(out.highest_cached, cache->stats().cached_bytes);
  }
  out.stats = cache->stats();
  return out;
}

TEST_CASE("a training run without a limit") {
  const LruStats s = Replay("mnist_train.csv", {}).stats;
  CHECK(s.hits == 2573);
  CHECK(s.misses == 132);
  CHECK(s.evictions == 0);
  CHECK(s.peak_in_use_bytes == 36798864);
  CHECK(s.peak_held_bytes == 36798944);
  CHECK(s.cached_bytes == 36797504);
  CHECK(s.in_use_bytes == 1440);
}

TEST_CASE("the same run with less than half the memory, least recently used first") {
  for (bool watch : {false, true}) {
    const Replayed r = Replay("mnist_train.csv", {.max_bytes = 16 << 20}, watch);
    CHECK(r.stats.hits == 1294);
    CHECK(r.stats.misses == 1411);
    CHECK(r.stats.evictions == 1332);
    CHECK(r.stats.cached_bytes == 16695200);
    CHECK(r.stats.peak_in_use_bytes == 36798864);
    CHECK(r.highest_cached <= 16 << 20);
  }
}

TEST_CASE("greedy-dual-size keeps more than least-recently-used under a tight limit") {
  for (const char* trace : {"mnist_train.csv", "resnet18_mixed_batch.csv", "decoder_varlen.csv"}) {
    CAPTURE(trace);
    const std::size_t limit = Replay(trace, {}).stats.peak_in_use_bytes / 4;
    const Replayed lru = Replay(trace, {.max_bytes = limit});
    const Replayed gds = Replay(trace, {.max_bytes = limit, .policy = EvictionPolicy::kGreedyDualSize}, true);
    CHECK(gds.stats.hits > lru.stats.hits);
    CHECK(gds.highest_cached <= limit);
  }
}

}  // namespace
}  // namespace packalloc
