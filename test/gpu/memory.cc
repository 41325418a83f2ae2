// The device as the driver describes it, the contract suite on it, and what happens when its memory runs out.
#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "packalloc/layers/lru.h"
#include "packalloc/packed_allocator.h"
#include "packalloc/registry.h"
#include "packalloc/testing/check_contract.h"
#include "test/gpu/gpu.h"

namespace gpu {

void Describe(const Settings& settings, Results& results) {
  const std::string name = absl::StrCat("CUDA:", settings.device);
  bool found = false;
  for (const packalloc::DeviceInfo& info : packalloc::Devices()) {
    if (info.name != name) continue;
    found = info.available;
    std::printf("%s: %s", info.name.c_str(), info.available ? info.description.c_str() : info.reason.c_str());
    for (const auto& [key, value] : info.properties) std::printf(", %s %s", key.c_str(), value.c_str());
    std::printf("\n");
  }
  results.Check(found, absl::StrCat("the registry does not list ", name, " as available"));
}

void Contract(const Settings& settings, Results& results) {
  packalloc::testing::ContractOptions options;
  options.skips = packalloc::testing::WithoutHooks();
  // The suite wraps a pageable array, which no device address is.
  for (const char* clause : {"spec.external_ptr", "spec.external_ptr_not_freed", "spec.external_ptr_not_cached"}) {
    options.skips[clause] = "external memory must be known to CUDA";
  }
  options.large_bytes = std::min((std::size_t{64} << 20) + 13, settings.max_bytes);
  const auto run = [&](const char* what, const auto& factory) {
    const packalloc::testing::ContractReport report = packalloc::testing::CheckContract(factory, options);
    std::printf("- %s: %zu clauses hold, %zu violations, %zu do not apply\n", what, report.passed.size(),
                report.violations.size(), report.skipped.size());
    results.passed += static_cast<int>(report.passed.size());
    for (const packalloc::testing::Violation& violation : report.violations) {
      results.Check(false, absl::StrCat(what, ": ", violation.clause, ": ", violation.what));
    }
  };
  const auto raw = [&] { return packalloc::CudaAllocator({.device = settings.device}); };
  const auto packed = [&]() -> absl::StatusOr<packalloc::PackedAllocator> {
    auto record = raw();
    if (!record.ok()) return record.status();
    return packalloc::Pack(*record);
  };
  run("raw", raw);
  run("packed", packed);
  run("under LRU", [&]() -> absl::StatusOr<packalloc::PackedAllocator> {
    auto allocator = packed();
    if (!allocator.ok()) return allocator.status();
    return packalloc::Lru(*allocator);
  });
  run("stream-ordered allocation", [&] {
    return packalloc::CudaAllocator(
        {.device = settings.device, .allocation = packalloc::CudaAllocation::kStreamOrdered});
  });
}

void Exhaustion(const Settings& settings, Results& results) {
  absl::StatusOr<packalloc::Allocator<packalloc::CudaBuf>> record =
      packalloc::CudaAllocator({.device = settings.device});
  if (!results.Ok(record, "open")) return;
  absl::StatusOr<packalloc::PackedAllocator> packed = packalloc::Pack(*record);
  if (!results.Ok(packed, "pack")) return;
  absl::StatusOr<packalloc::PackedAllocator> cached = packalloc::Lru(*packed);
  if (!results.Ok(cached, "lru")) return;
  const absl::StatusOr<packalloc::MemoryInfo> memory = cached->memory_info();
  if (!results.Ok(memory, "memory_info")) return;

  // All of the device's memory, in blocks of a 16th; once it is refused, all goes to the cache.
  const std::size_t block = std::max<std::size_t>(memory->free_bytes / 16, 1 << 20);
  std::vector<packalloc::AnyBuf> blocks;
  absl::Status refused;
  for (int i = 0; i < 64 && refused.ok(); ++i) {
    absl::StatusOr<packalloc::AnyBuf> buf = cached->alloc(block);
    if (buf.ok()) blocks.push_back(*buf);
    refused = buf.status();
  }
  std::printf("%zu blocks of %s, then: %s\n", blocks.size(), Size(block).c_str(), refused.ToString().c_str());
  results.Check(blocks.size() >= 8, "less than half of what memory_info called free was to be had");
  results.Code(refused, absl::StatusCode::kResourceExhausted, "alloc on a full device");
  if (!blocks.empty()) {
    const std::vector<std::byte> in = Pattern(1 << 20, 9);
    std::vector<std::byte> out(in.size());
    results.Ok(cached->copyin(blocks.front(), in), "copyin on a full device");
    results.Ok(cached->copyout(absl::MakeSpan(out), blocks.front()), "copyout on a full device");
    results.Check(in == out, "a full device keeps other bytes");
  }
  for (const packalloc::AnyBuf& buf : blocks) results.Ok(cached->free(buf, block), "free");
  // The cache holds it all: what is larger than any of it makes the cache give back.
  absl::StatusOr<packalloc::AnyBuf> large = cached->alloc(3 * block);
  if (results.Ok(large, "alloc of three blocks while the cache holds the device")) {
    results.Ok(cached->free(*large, 3 * block), "free");
  }
  const auto control = packalloc::Find<packalloc::LruControl>(*cached);
  if (control != nullptr) {
    results.Check(control->stats().flushes > 0, "the cache did not give back");
    std::printf("flushes: %llu\n", static_cast<unsigned long long>(control->stats().flushes));
    results.Ok(control->Clear(), "Clear");
  }
  const absl::StatusOr<packalloc::MemoryInfo> after = cached->memory_info();
  if (results.Ok(after, "memory_info")) {
    results.Check(after->free_bytes + (std::size_t{256} << 20) >= memory->free_bytes, "memory was lost on the way");
  }
  results.Code(packed->alloc(memory->total_bytes * 2, {.host = false}).status(), absl::StatusCode::kResourceExhausted,
               "alloc of twice the device's memory");
}

}  // namespace gpu
