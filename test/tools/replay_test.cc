#include "tools/replay.h"

#include <doctest/doctest.h>

#include <memory>
#include <string>

#include "packalloc/backends/mock.h"
#include "packalloc/registry.h"
#include "test/temp_dir.h"

namespace packalloc {
namespace {

const std::string kMnist = std::string(PACKALLOC_TRACES) + "/mnist_train.csv";
const std::string kHeader = "Thread,Time,Action,Pointer,Size,Stream\n";

ReplayResult Replayed(const std::string& path, const std::string& device) {
  double last = 0;
  absl::StatusOr<ReplayResult> result = Replay(path, device, [&last](double part) {
    CHECK(part >= last);
    CHECK(part <= 1);
    last = part;
  });
  REQUIRE_MESSAGE(result.ok(), result.status().ToString());
  CHECK(last == 1);
  return *result;
}

TEST_CASE("a training run through the cache: what was recorded") {
  for (const char* device : {"CPU+lru", "NULL+lru", "MOCK+lru"}) {
    CAPTURE(device);
    const ReplayResult result = Replayed(kMnist, device);
    CHECK(result.allocations == 2705);
    CHECK(result.hits == 2573);
    CHECK(result.misses == 132);
    CHECK(result.evictions == 0);
    CHECK(result.peak_live_bytes == 36798864);
    CHECK(result.peak_held_bytes == 36798944);
    CHECK(result.cached_bytes_end == 36797504);
    CHECK(result.live_bytes_end == 1440);
    CHECK(result.ns_per_op > 0);
  }
}

TEST_CASE("a training run under a tight limit: what was recorded") {
  const ReplayResult result = Replayed(kMnist, "CPU+lru:max_bytes=16MiB");
  CHECK(result.allocations == 2705);
  CHECK(result.hits == 1294);
  CHECK(result.misses == 1411);
  CHECK(result.evictions == 1332);
  CHECK(result.cached_bytes_end == 16695200);
  CHECK(result.live_bytes_end == 1440);
}

TEST_CASE("without a cache every allocation is a miss and what is held is live") {
  const ReplayResult result = Replayed(kMnist, "CPU");
  CHECK(result.allocations == 2705);
  CHECK(result.hits == 0);
  CHECK(result.misses == 2705);
  CHECK(result.evictions == 0);
  CHECK(result.peak_live_bytes == 36798864);
  CHECK(result.peak_held_bytes == 36798864);
  CHECK(result.cached_bytes_end == 0);
  CHECK(result.live_bytes_end == 1440);
}

TEST_CASE("the other recorded traces") {
  const ReplayResult resnet = Replayed(std::string(PACKALLOC_TRACES) + "/resnet18_mixed_batch.csv", "CPU+lru");
  CHECK(resnet.allocations == 1008);
  CHECK(resnet.hits + resnet.misses == 1008);
  const ReplayResult decoder = Replayed(std::string(PACKALLOC_TRACES) + "/decoder_varlen.csv", "CPU+lru");
  CHECK(decoder.allocations == 1175);
  CHECK(decoder.hits + decoder.misses == 1175);
  // Sizes that keep changing hit only where they are rounded.
  CHECK(Replayed(std::string(PACKALLOC_TRACES) + "/decoder_varlen.csv", "CPU+lru:max_waste=0.125").hits > decoder.hits);
}

TEST_CASE("zero sizes, recorded failures and an empty trace") {
  const TempDir directory;
  const std::string path = directory.Write("t.csv", kHeader +
                                                        "1,0,allocate,1,0,0\n1,0,allocate,2,100,0\n"
                                                        "1,0,allocate failure,0x0,1000,0\n1,0,free,1,0,0\n");
  const ReplayResult result = Replayed(path, "CPU");
  CHECK(result.allocations == 2);
  CHECK(result.frees == 1);
  CHECK(result.recorded_failures == 1);
  CHECK(result.peak_live_bytes == 100);
  CHECK(result.live_bytes_end == 100);
  const ReplayResult none = Replayed(directory.Write("e.csv", kHeader), "CPU+lru");
  CHECK(none.allocations == 0);
  CHECK(none.ns_per_op == 0);
}

// A device whose mock the test keeps.
struct Watched {
  explicit Watched(const std::string& name, const MockOptions& options = {}) : mock(MockAllocator(options)) {
    Backend backend;
    backend.name = name;
    backend.open = [this](const OpenRequest&) { return Pack(mock); };
    REQUIRE(Register(backend).ok());
  }
  Allocator<MockBuf> mock;
};

TEST_CASE("what fails on the device names file and line, and nothing stays allocated") {
  static Watched& watched = *new Watched("SMALL", MockOptions{.capacity_bytes = 1000});
  const TempDir directory;
  const std::string path = directory.Write(
      "t.csv", kHeader + "1,0,allocate,1,600,0\n1,0,allocate,2,300,0\n1,0,allocate,3,200,0\n1,0,free,1,600,0\n");
  for (const char* device : {"SMALL", "SMALL+lru"}) {
    CAPTURE(device);
    const absl::Status status = Replay(path, device, [](double) {}).status();
    CHECK(status.code() == absl::StatusCode::kResourceExhausted);
    CHECK_MESSAGE(std::string(status.message()).find("/t.csv:4: on " + std::string(device)) != std::string::npos,
                  status.ToString());
    CHECK(Find<MockControl>(watched.mock)->live_blocks() == 0);
  }
  const std::string malformed = directory.Write("m.csv", kHeader + "1,0,allocate,1,600,0\n1,0,free,1,601,0\n");
  CHECK_FALSE(Replay(malformed, "SMALL", [](double) {}).ok());
  CHECK(Find<MockControl>(watched.mock)->live_blocks() == 0);
}

TEST_CASE("what a trace leaves allocated is freed") {
  static Watched& watched = *new Watched("TIDY");
  CHECK(Replayed(kMnist, "TIDY").live_bytes_end == 1440);
  CHECK(Find<MockControl>(watched.mock)->live_blocks() == 0);
  CHECK(Replayed(kMnist, "TIDY+lru").live_bytes_end == 1440);
  CHECK(Find<MockControl>(watched.mock)->live_blocks() == 0);
}

TEST_CASE("a device that is not there is its own error") {
  CHECK(Replay(kMnist, "NOSUCH", [](double) {}).status().code() == absl::StatusCode::kNotFound);
  CHECK(Replay(kMnist, "CPU+nosuch", [](double) {}).status().code() == absl::StatusCode::kNotFound);
  CHECK(Replay(kMnist + "x", "CPU", [](double) {}).status().code() == absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace packalloc
