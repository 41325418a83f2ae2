// Every layer by name, with every parameter.
#include <doctest/doctest.h>
#include <unistd.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "packalloc/buffer.h"
#include "packalloc/layers/checked.h"
#include "packalloc/layers/counted.h"
#include "packalloc/layers/failing.h"
#include "packalloc/layers/fallback.h"
#include "packalloc/layers/limited.h"
#include "packalloc/layers/lru.h"
#include "packalloc/layers/traced.h"
#include "packalloc/registry.h"
#include "test/temp_dir.h"

namespace packalloc {
namespace {

absl::Status Refused(const std::string& name) {
  const absl::StatusOr<PackedAllocator> device = Open(name);
  CHECK_MESSAGE(device.status().code() == absl::StatusCode::kInvalidArgument,
                name << ": " << device.status().ToString());
  return device.status();
}

TEST_CASE("a stack of all layers by name, innermost first") {
  const TempDir dir;
  const std::string name =
      "CPU+limited:max_bytes=1MiB+failing:member=copyin,nth=2,code=UNAVAILABLE+lru:max_bytes=1GiB+counted:by_thread=1"
      "+checked:guard_bytes=8,poison=0,stack_depth=2,history=3,abort=0+traced:file=\"" +
      (dir / "a.csv") + "\",block_bytes=10";
  const absl::StatusOr<PackedAllocator> device = Open(name);
  REQUIRE_MESSAGE(device.ok(), device.status().ToString());
  CHECK(Find<LimitedControl>(*device)->max_bytes() == 1 << 20);
  CHECK(Find<LruControl>(*device) != nullptr);
  CHECK(Find<CountedControl>(*device) != nullptr);
  CHECK(Find<CheckedControl>(*device) != nullptr);
  CHECK(Find<TracedControl>(*device) != nullptr);
  const AnyBuf buf = *device->alloc(64);
  std::vector<std::byte> bytes(8);
  CHECK(device->free(buf, 64).ok());
  CHECK(Find<CountedControl>(*device)->by_thread().size() == 1);
  CHECK(Find<FailingControl>(*device)->failures(Member::kCopyin) == 1);  // a guard went without
  Shutdown();
}

TEST_CASE("fallback by name") {
  const absl::StatusOr<PackedAllocator> device = Open("CPU+limited:max_bytes=100+fallback:to=\"CPU+counted\"");
  REQUIRE(device.ok());
  const AnyBuf buf = *device->alloc(1000);
  CHECK(Find<FallbackControl>(*device)->second_bytes() == 1000);
  CHECK(device->free(buf, 1000).ok());
  Refused("CPU+fallback").IgnoreError();
  Refused("CPU+fallback:to=MOCK").IgnoreError();
  Refused("CPU+fallback:to=CPU+lru").IgnoreError();
  CHECK(Open("CPU+fallback:to=NOSUCH").status().code() == absl::StatusCode::kNotFound);
  Shutdown();
}

TEST_CASE("failing by name: an exception") {
  const PackedAllocator device = *Open("CPU+failing:every=1,throw=1");
  CHECK_THROWS_AS(device.alloc(1).IgnoreError(), std::runtime_error);
  Shutdown();
}

TEST_CASE("parameters that make no sense are refused, naming layer and parameter") {
  for (const auto& [name, parameter] : std::vector<std::pair<std::string, std::string>>{
           {"CPU+limited", "max_bytes"},
           {"CPU+limited:max_bytes=lots", "max_bytes"},
           {"CPU+traced", "file"},
           {"CPU+traced:file=x,colour=red", "colour"},
           {"CPU+checked:poison=maybe", "poison"},
           {"CPU+counted:by_thread=2", "by_thread"},
           {"CPU+failing:member=nothing", "member"},
           {"CPU+failing:code=BAD", "code"},
           {"CPU+failing:probability=2", "probability"},
           {"CPU+checked+lru", "outside the cache"},
           {"CPU+checked+counted+checked", "checked already"},
       }) {
    const std::string& refused = name;  // a structured binding cannot be captured
    CHECK_MESSAGE(Refused(refused).message().find(parameter) != std::string::npos, refused);
  }
  Shutdown();
}

TEST_CASE("PACKALLOC_LAYERS puts layers on what a program opens by name") {
  const TempDir dir;
  setenv("PACKALLOC_LAYERS", ("checked+traced:file=" + (dir / "t.csv")).c_str(), 1);
  const PackedAllocator device = *Open("CPU+lru");
  unsetenv("PACKALLOC_LAYERS");
  const AnyBuf buf = *device.alloc(64);
  CHECK(device.free(buf, 64).ok());
  CHECK(device.free(buf, 64).code() == absl::StatusCode::kFailedPrecondition);
  CHECK(Find<TracedControl>(device)->Flush().ok());
  Shutdown();
}

TEST_CASE("Shutdown tells what a buffer that lives on holds of a checked device") {
  const Buffer leaked(*Open("CPU+checked"), 12345);
  REQUIRE(leaked.Allocate().ok());
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const int console = dup(STDERR_FILENO);
  dup2(ends[1], STDERR_FILENO);
  Shutdown();
  dup2(console, STDERR_FILENO);
  close(console);
  close(ends[1]);
  std::string told(4096, '\0');
  CHECK(read(ends[0], told.data(), told.size()) > 0);
  close(ends[0]);
  CHECK(absl::StrContains(told, "a buffer of 12345 bytes was not freed"));
}

}  // namespace
}  // namespace packalloc
