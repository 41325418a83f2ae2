// Random sequences of operations on a packed allocator, held to a model of plain bytes; made smaller where one fails.
#ifndef PACKALLOC_TEST_RANDOM_MODEL_H_
#define PACKALLOC_TEST_RANDOM_MODEL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "packalloc/backends/mock.h"
#include "packalloc/packed_allocator.h"

namespace packalloc::testing {

// What a step does is decided by its numbers and by what is allocated when it runs, so any steps make a sequence.
struct Step {
  std::uint64_t operation, a, b, c, d;
};
std::vector<Step> RandomSteps(std::mt19937_64& random, std::size_t count);

// What an episode runs on.
struct World {
  PackedAllocator device{};
  std::shared_ptr<MockControl> mock{};  // null where the backend is none
  bool keeps_bytes = true;
  bool frees_may_fail = true;  // false under a cache, which gives up what cannot be freed
  bool checked = false;        // poisons what it fails to free
};
using WorldFactory = std::function<World()>;

// Runs the steps on a fresh world. What went wrong first, or nullopt.
std::optional<std::string> Run(const WorldFactory& make, const std::vector<Step>& steps);

// As few of the steps as still fail.
std::vector<Step> Shrink(const WorldFactory& make, std::vector<Step> steps);

// One line per step as it goes, for reading a small sequence.
std::string Story(const WorldFactory& make, const std::vector<Step>& steps);

}  // namespace packalloc::testing

#endif  // PACKALLOC_TEST_RANDOM_MODEL_H_
