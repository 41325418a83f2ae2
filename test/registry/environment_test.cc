// What the environment says wrongly costs one warning that names it, and never an allocation.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "packalloc/layers/counted.h"
#include "packalloc/layers/limited.h"
#include "packalloc/layers/lru.h"
#include "packalloc/layers/traced.h"
#include "packalloc/packed_allocator.h"
#include "packalloc/registry.h"
#include "test/hostile_locale.h"
#include "test/stderr_of.h"
#include "test/temp_dir.h"

namespace packalloc {
namespace {

const char* const kDevices[] = {"CPU", "NULL", "MOCK"};
const char* const kGarbage[] = {"", " ", "abc", "-1", "1e3", "64MB", "0.5", "1,5", "99999999999999999999"};

struct SetVariable {
  SetVariable(const char* variable, const std::string& value) : name(variable) { setenv(name, value.c_str(), 1); }
  ~SetVariable() { unsetenv(name); }
  SetVariable(const SetVariable&) = delete;
  SetVariable& operator=(const SetVariable&) = delete;
  const char* name;
};

bool Works(const PackedAllocator& device) {
  const absl::StatusOr<AnyBuf> buf = device.alloc(1000);
  return buf.ok() && device.free(*buf, 1000).ok();
}

// One line that has all of `parts`.
void IsOneWarning(const std::string& text, const std::vector<std::string>& parts) {
  CAPTURE(text);
  CHECK(std::count(text.begin(), text.end(), '\n') == 1);
  for (const std::string& part : parts) CHECK(text.find(part) != std::string::npos);
}

// `layer` with each value that its parameter cannot have, on each device.
template <typename Control>
void CheckLimits(const std::string& layer) {
  for (const std::string device : kDevices) {
    for (const std::string value : kGarbage) {
      CAPTURE(device);
      CAPTURE(value);
      const SetVariable set("PACKALLOC_LAYERS", layer + ":max_bytes=" + value);
      absl::StatusOr<PackedAllocator> opened;
      // The message may be the same for all devices, and is then told for the first only.
      const std::string warning = StderrOf([&] { opened = Open(device); });
      if (device == kDevices[0]) IsOneWarning(warning, {"PACKALLOC_LAYERS", "max_bytes", value, "no layer is added"});
      REQUIRE(opened.ok());
      CHECK(Find<Control>(*opened) == nullptr);
      CHECK(Works(*opened));
      CHECK(StderrOf([&] { CHECK(Open(device).ok()); }).empty());
    }
  }
  Shutdown();
}

TEST_CASE("a limit that cannot be read is told once, and no layer is added") { CheckLimits<LruControl>("lru"); }

TEST_CASE("so under a comma locale with grouping, where a limit that is right is what it is") {
  const HostileLocale locale;
  CheckLimits<LimitedControl>("limited");
  const SetVariable set("PACKALLOC_LAYERS", "limited:max_bytes=1048576");
  const absl::StatusOr<PackedAllocator> opened = Open("CPU");
  REQUIRE(opened.ok());
  CHECK(opened->traits().max_alloc_bytes == 1048576);
  const std::string refused(opened->alloc(1048577).status().message());
  CHECK(refused.find("1048577") != std::string::npos);
  Shutdown();
}

TEST_CASE("an LRU switch that cannot be read is told once, and caches go on") {
  for (const std::string value : kGarbage) {
    CAPTURE(value);
    const SetVariable set("LRU", value);
    const std::string warning = StderrOf([] {
      const PackedAllocator cached = *Lru(*Open("NULL"));
      CHECK(Works(cached));
      CHECK(Works(cached));
      CHECK(Find<LruControl>(cached)->stats().hits == 1);
    });
    IsOneWarning(warning, {"LRU", "'" + value + "'"});
  }
}

TEST_CASE("a trace that cannot be created is told once, and nothing is traced") {
  const TempDir dir;
  for (const std::string device : kDevices) {
    for (const std::string& file : {std::string("/dev/null/x"), dir.path(), dir / "none/trace.csv", std::string()}) {
      CAPTURE(device);
      CAPTURE(file);
      const SetVariable set("PACKALLOC_LAYERS", "traced:file=" + file);
      absl::StatusOr<PackedAllocator> opened;
      const std::string warning = StderrOf([&] { opened = Open(device); });
      if (device == kDevices[0]) IsOneWarning(warning, {"PACKALLOC_LAYERS", file, "no layer is added"});
      REQUIRE(opened.ok());
      CHECK(Find<TracedControl>(*opened) == nullptr);
      CHECK(Works(*opened));
    }
  }
  Shutdown();
}

TEST_CASE("a trace whose disk is full is told once, and allocations go on") {
  const SetVariable set("PACKALLOC_LAYERS", "traced:file=/dev/full,block_bytes=100");
  const std::string warnings = StderrOf([] {
    for (const std::string device : kDevices) {
      const absl::StatusOr<PackedAllocator> opened = Open(device);
      REQUIRE(opened.ok());
      CHECK(Find<TracedControl>(*opened) != nullptr);
      for (int i = 0; i < 20; ++i) CHECK(Works(*opened));
    }
    Shutdown();
  });
  IsOneWarning(warnings, {"/dev/full"});
}

}  // namespace
}  // namespace packalloc
