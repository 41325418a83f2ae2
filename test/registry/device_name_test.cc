#include "lib/registry/device_name.h"

#include <doctest/doctest.h>

#include <random>
#include <string>

namespace packalloc {
namespace {

DeviceName Parsed(const std::string& text) {
  absl::StatusOr<DeviceName> name = ParseDeviceName(text);
  REQUIRE_MESSAGE(name.ok(), text << ": " << std::string(name.status().message()));
  return *name;
}

TEST_CASE("names are taken apart") {
  CHECK(Parsed("CPU") == DeviceName{"CPU", "", {}});
  CHECK(Parsed("cuda:1") == DeviceName{"CUDA", "1", {}});
  CHECK(Parsed("CL:GeForce RTX") == DeviceName{"CL", "GeForce RTX", {}});
  CHECK(Parsed("DISK:/a:b/c=d.bin+checked") == DeviceName{"DISK", "/a:b/c=d.bin", {{"checked", {}}}});
  CHECK(Parsed("CPU+lru:max_bytes=64MiB,policy=gds,max_waste=0.125") ==
        DeviceName{"CPU", "", {{"lru", {{"max_bytes", "64MiB"}, {"policy", "gds"}, {"max_waste", "0.125"}}}}});
  CHECK(Parsed("CUDA:1+lru+traced:path=a:b") == DeviceName{"CUDA", "1", {{"lru", {}}, {"traced", {{"path", "a:b"}}}}});
  CHECK(Parsed("DISK:\"a+b.bin\"+checked") == DeviceName{"DISK", "a+b.bin", {{"checked", {}}}});
  CHECK(Parsed("DISK:\"a,\\\"b\\\\\"") == DeviceName{"DISK", "a,\"b\\", {}});
  CHECK(Parsed("CPU+traced:path=\"x,y+z\"") == DeviceName{"CPU", "", {{"traced", {{"path", "x,y+z"}}}}});
  CHECK(Parsed("DISK:\"\"") == DeviceName{"DISK", "", {}});
}

TEST_CASE("layers alone are taken apart") {
  for (const char* text : {"lru:max_bytes=1+checked", "+lru:max_bytes=1+checked"}) {
    absl::StatusOr<std::vector<LayerName>> layers = ParseLayers(text);
    REQUIRE(layers.ok());
    CHECK(*layers == std::vector<LayerName>{{"lru", {{"max_bytes", "1"}}}, {"checked", {}}});
  }
  CHECK(ParseLayers("")->empty());
  for (const char* text : {"+", "++", "lru+", "LRU", "lru:", " lru"}) {
    CAPTURE(text);
    CHECK(ParseLayers(text).status().code() == absl::StatusCode::kInvalidArgument);
  }
}

TEST_CASE("a malformed name says what was understood and what was expected") {
  struct {
    const char* text;
    const char* says;
  } const cases[] = {
      {"", "expected a backend's name"},
      {":1", "expected a backend's name"},
      {"+lru", "expected a backend's name"},
      {"C-PU", "expected a backend's name"},
      {"1CPU", "expected a backend's name"},
      {" CPU", "expected a backend's name"},
      {"CPU ", "expected a backend's name"},
      {"CUDA:", "understood 'CUDA:', then expected a target after : where the name ends"},
      {"CUDA:+lru", "understood 'CUDA:', then expected a target after : instead of '+lru'"},
      {"CUDA:1,2", "understood 'CUDA:1', then expected + and a layer, or the end instead of ',2'"},
      {"CPU+", "understood 'CPU+', then expected a layer's name (lower-case letters, as lru) where the name ends"},
      {"CPU++lru", "understood 'CPU+', then expected a layer's name"},
      {"CPU+Lru", "understood 'CPU+', then expected a layer's name"},
      {"CPU+lru:", "understood 'CPU+lru:', then expected KEY=VALUE for layer lru"},
      {"CPU+lru:max_bytes", "understood 'CPU+lru:', then expected KEY=VALUE"},
      {"CPU+lru:max_bytes=", "understood 'CPU+lru:max_bytes=', then expected a value for max_bytes"},
      {"CPU+lru:max_bytes=1,", "understood 'CPU+lru:max_bytes=1,', then expected KEY=VALUE"},
      {"CPU+lru:a=1,a=2", "expected each parameter of layer lru once"},
      {"CPU+lru:=1", "expected KEY=VALUE"},
      {"DISK:\"a", "expected a closing quote"},
      {"DISK:\"a\\\"", "expected a closing quote"},
      {"DISK:\"a\"b", "understood 'DISK:\\\"a\\\"', then expected + and a layer"},
      {"DISK:a\"b\"", "in quotes as a whole"},
  };
  for (const auto& c : cases) {
    CAPTURE(c.text);
    const absl::Status status = ParseDeviceName(c.text).status();
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK_MESSAGE(std::string(status.message()).find(c.says) != std::string::npos, std::string(status.message()));
  }
  CHECK_FALSE(ParseDeviceName(std::string("DISK:a\0b", 8)).ok());
  CHECK_FALSE(ParseDeviceName(std::string("CPU\0", 4)).ok());
}

TEST_CASE("a name put together is taken apart to the same") {
  for (const char* text :
       {"CPU", "DISK:\"a+b,\\\"c\\\\\"+lru:policy=\"x+y\"+checked", "CUDA:1+lru:max_bytes=1,policy=gds"}) {
    CHECK(Parsed(ToString(Parsed(text))) == Parsed(text));
  }
  CHECK(ToString(Parsed("cuda:\"1\"+lru:policy=gds,max_bytes=1")) == "CUDA:1+lru:max_bytes=1,policy=gds");
}

TEST_CASE("any text is taken apart or refused") {
  const unsigned seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937 random(seed);
  const std::string alphabet("CPUalru01:+,=\"\\_ \0\xff", 20);
  int parsed = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text(random() % 12, ' ');
    for (char& c : text) c = alphabet[random() % alphabet.size()];
    if (random() % 2 == 0) text = "CPU:" + text;
    absl::StatusOr<DeviceName> name = ParseDeviceName(text);
    if (!name.ok()) continue;
    ++parsed;
    absl::StatusOr<DeviceName> again = ParseDeviceName(ToString(*name));
    REQUIRE(again.ok());
    REQUIRE(*again == *name);
  }
  CHECK(parsed > 100);
}

}  // namespace
}  // namespace packalloc
