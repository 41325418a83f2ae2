// Layers keep the contract: each alone, and in random stacks of all of them; orders that cannot work are refused.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "packalloc/backends/cpu.h"
#include "packalloc/layers/checked.h"
#include "packalloc/layers/counted.h"
#include "packalloc/layers/failing.h"
#include "packalloc/layers/fallback.h"
#include "packalloc/layers/limited.h"
#include "packalloc/layers/lru.h"
#include "packalloc/layers/traced.h"
#include "packalloc/testing/contract.h"
#include "test/layers/random_stack.h"
#include "test/temp_dir.h"
#include "test/testing/mock_subject.h"

namespace packalloc::testing {
namespace {

// Layers stage nothing: larger copies would show no more.
ContractOptions Options(const MockSubject& subject) {
  ContractOptions options = subject.Options();
  options.large_bytes = (std::size_t{1} << 18) + 13;
  return options;
}

// The layer packed and on a typed record, over mocks that differ in what a layer looks at.
template <typename Layer>
void Keeps(Layer layer) {
  for (const MockOptions& mock : {MockOptions{.lazy = true}, MockOptions{.address_is_pointer = false},
                                  MockOptions{.host_accessible = false, .lazy = true}}) {
    const MockSubject subject(mock);
    RunContract([=] { return layer(*Pack(subject())); }, Options(subject));
    RunContract([=] { return layer(subject()); }, Options(subject));
  }
}

TEST_CASE("Checked keeps the contract") {
  Keeps([](auto record) { return Checked(std::move(record), {.stack_depth = 2}); });
}

TEST_CASE("Checked keeps the contract without guards, and over the cache") {
  const MockSubject subject({.lazy = true});
  RunContract([=] { return Checked(*Pack(subject()), {.guard_bytes = 0, .poison = false}); }, Options(subject));
  RunContract([=] { return Checked(*Lru(*Pack(subject()))); }, Options(subject));
  RunContract([=] { return Checked(*Lru(subject())); }, Options(subject));
  RunContract([=] { return Checked(*Lru(*Pack(subject()), {.max_bytes = 1 << 20, .max_waste = 0.25})); },
              Options(subject));
}

TEST_CASE("Traced keeps the contract") {
  const TempDir dir;
  const std::string file = dir.path() + "/trace.csv";
  Keeps([file](auto record) { return Traced(std::move(record), {.file = file}); });
}

TEST_CASE("Limited keeps the contract") {
  Keeps([](auto record) { return Limited(std::move(record), std::size_t{256} << 20); });
}

TEST_CASE("Counted keeps the contract") {
  Keeps([](auto record) { return Counted(std::move(record), {.by_thread = true}); });
}

TEST_CASE("Failing keeps the contract where no rule says otherwise") {
  Keeps([](auto record) { return Failing(std::move(record)); });
}

TEST_CASE("Fallback keeps the contract: all from the first") {
  const MockSubject subject({.lazy = true});
  ContractOptions options = Options(subject);
  // What the second has is not seen by the hooks, which look at the one made last.
  for (const char* clause : {"alloc.exhausted_device"}) options.skips[clause] = "the second is not exhausted";
  const MockOptions second{
      .name = "SECOND", .lazy = true, .read_extent = [](auto, const auto&) { return absl::OkStatus(); }};
  RunContract([=] { return Fallback(*Pack(subject()), *Pack(MockAllocator(second))); }, options);
  RunContract([=] { return Fallback(subject(), MockAllocator(second)); }, options);
}

TEST_CASE("Fallback keeps the contract: all from the second") {
  const MockSubject subject({.lazy = true});
  const MockOptions first{
      .name = "FIRST", .capacity_bytes = 0, .read_extent = [](auto, const auto&) { return absl::OkStatus(); }};
  ContractOptions options = Options(subject);
  options.skips["spec.external_ptr_not_freed"] = "external memory is the first's, whose blocks the hooks do not see";
  RunContract(
      [=] {
        const PackedAllocator none = *Pack(MockAllocator(first));
        return Fallback(none, *Pack(subject()));
      },
      options);
}

TEST_CASE("no layer has an optional member that its record lacks, and none calls one") {
  const TempDir dir;
  const std::string file = dir.path() + "/trace.csv";
  const MockOptions bare{
      .absent = {Member::kOffset, Member::kTransfer, Member::kHostPtr, Member::kMemoryInfo, Member::kSynchronize}};
  const std::map<std::string, std::function<absl::StatusOr<PackedAllocator>(const PackedAllocator&)>> layers = {
      {"lru", [](const auto& record) { return Lru(record); }},
      {"checked", [](const auto& record) { return Checked(record, {.stack_depth = 0}); }},
      {"traced", [&file](const auto& record) { return Traced(record, {.file = file}); }},
      {"counted", [](const auto& record) { return Counted(record); }},
      {"failing", [](const auto& record) { return Failing(record); }},
      {"limited", [](const auto& record) { return Limited(record, std::size_t{256} << 20); }},
      {"fallback", [&bare](const auto& record) { return Fallback(record, *Pack(MockAllocator(bare))); }},
  };
  Skips skips;
  for (const char* member : {"offset", "transfer", "copy_from_disk", "host_ptr", "memory_info"}) {
    skips.merge(WithoutMember(member));
  }
  skips.merge(WithoutHooks());
  for (const auto& entry : layers) {
    const std::string layer = entry.first;
    CAPTURE(layer);
    const PackedAllocator over = *entry.second(*Pack(MockAllocator(bare)));
    CHECK_FALSE(over.supports_offset());
    CHECK_FALSE(over.supports_copy_from_disk());
    CHECK_FALSE(over.supports_host_ptr());
    // What these two make of what they know themselves.
    if (layer != "fallback") CHECK_FALSE(over.supports_transfer());
    if (layer != "limited") CHECK_FALSE(static_cast<bool>(over.record().memory_info));
    ContractOptions options;
    options.skips = skips;
    RunContract([&] { return entry.second(*Pack(MockAllocator(bare))); }, options);
  }
}

TEST_CASE("random stacks of layers keep the contract") {
  const TempDir dir;
  const std::uint64_t seed = std::random_device{}();
  int stacks = 6;
  if (const char* more = std::getenv("PACKALLOC_STACKS")) stacks = std::atoi(more);
  std::mt19937_64 random(seed);
  for (int i = 0; i < stacks; ++i) {
    const RandomStack stack(random, dir.path());
    CAPTURE(seed);
    CAPTURE(stack.text());
    const MockSubject subject({.lazy = random() % 2 == 0});
    RunContract([=] { return stack.Over(*Pack(subject())); }, Options(subject));
  }
}

TEST_CASE("orders that cannot work are refused, with the reason") {
  const PackedAllocator cpu = *Pack(CpuAllocator());
  const auto refused = [](const absl::Status& status, const char* reason) {
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK(status.message().find(reason) != std::string::npos);
  };
  refused(Lru(*Checked(cpu)).status(), "outside the cache");
  refused(Lru(*Counted(*Checked(cpu))).status(), "outside the cache");
  refused(Lru(*Fallback(cpu, cpu)).status(), "its own cache");
  refused(Checked(*Limited(*Checked(cpu), 1000)).status(), "checked already");
}

}  // namespace
}  // namespace packalloc::testing
