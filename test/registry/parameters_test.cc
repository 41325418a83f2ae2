#include "lib/registry/parameters.h"

#include <doctest/doctest.h>

#include <string>

namespace packalloc {
namespace {

enum class Color { kRed, kBlue };

LayerName Layer(std::map<std::string, std::string> parameters) { return {"paint", std::move(parameters)}; }

std::string Message(const absl::Status& status) {
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST_CASE("parameters are read by type, or left at their defaults") {
  const LayerName layer =
      Layer({{"size", "2KiB"}, {"n", "7"}, {"part", "0.5"}, {"on", "yes"}, {"at", "x"}, {"color", "blue"}});
  Parameters given(layer);
  CHECK(given.Bytes("size", 1) == 2048);
  CHECK(given.Count("n", 1) == 7);
  CHECK(given.Number("part", 1) == 0.5);
  CHECK(given.Flag("on", false));
  CHECK(given.Text("at", "y") == "x");
  CHECK(given.Choice("color", Color::kRed, {{"red", Color::kRed}, {"blue", Color::kBlue}}) == Color::kBlue);
  CHECK(given.Finish().ok());

  const LayerName bare = Layer({});
  Parameters none(bare);
  CHECK(none.Bytes("size", 1) == 1);
  CHECK(none.Count("n", 2) == 2);
  CHECK(none.Number("part", 0.25) == 0.25);
  CHECK(none.Flag("on", true));
  CHECK(none.Text("at", "y") == "y");
  CHECK(none.Choice("color", Color::kRed, {{"red", Color::kRed}}) == Color::kRed);
  CHECK(none.Finish().ok());
}

TEST_CASE("a parameter that nobody asked for is an error naming those that exist") {
  const LayerName layer = Layer({{"sizes", "1"}});
  Parameters parameters(layer);
  parameters.Bytes("size", 1);
  parameters.Count("n", 1);
  CHECK(Message(parameters.Finish()) == "layer paint has no parameter 'sizes'; it has size, n");
  CHECK(Message(Parameters(layer).Finish()) == "layer paint has no parameter 'sizes'; it has none");
}

TEST_CASE("nonsense gives the default and an error naming layer, parameter and text") {
  const LayerName layer = Layer({{"size", "-1"}, {"part", "0,5"}, {"color", "green"}});
  {
    Parameters parameters(layer);
    CHECK(parameters.Bytes("size", 3) == 3);
    CHECK(Message(parameters.Finish()).find("layer paint: size: '-1' is not a size") == 0);
  }
  {
    Parameters parameters(layer);
    CHECK(parameters.Number("part", 3) == 3);
    CHECK(Message(parameters.Finish()).find("layer paint: part: '0,5' is not a number") == 0);
  }
  Parameters parameters(layer);
  CHECK(parameters.Choice("color", Color::kRed, {{"red", Color::kRed}, {"blue", Color::kBlue}}) == Color::kRed);
  CHECK(Message(parameters.Finish()) == "layer paint: color: 'green' is not one of red, blue");
}

}  // namespace
}  // namespace packalloc
