#include "tools/load.h"

#include <doctest/doctest.h>
#include <zlib.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "packalloc/backends/cpu.h"
#include "packalloc/backends/mock.h"
#include "packalloc/registry.h"
#include "test/temp_dir.h"

namespace packalloc {
namespace {

TEST_CASE("a model is loaded, verified, and let go again; its progress ends at the total") {
  const TempDir dir;
  const std::string bytes = TextPattern(3'000'001);
  const std::string path = dir.Write("weights.bin", bytes);
  for (const char* device : {"CPU", "CPU+lru", "MOCK", "NULL"}) {
    CAPTURE(device);
    std::uint64_t last = 0;
    const bool moves_bytes = std::string(device) != "NULL";
    absl::StatusOr<LoadResult> result = Load(path, device, moves_bytes, [&](std::uint64_t done, std::uint64_t total) {
      CHECK(done >= last);
      CHECK(total == bytes.size());
      last = done;
      return true;
    });
    REQUIRE_MESSAGE(result.ok(), result.status().ToString());
    CHECK(last == bytes.size());
    CHECK(result->tensors == 1);
    CHECK(result->bytes == bytes.size());
    CHECK(result->read.page_cache_bytes + result->read.buffered_bytes + result->read.io_uring_bytes +
              result->read.direct_bytes ==
          bytes.size());
    if (moves_bytes) {
      CHECK(*result->checksum == crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
    }
  }
  CHECK(Find<MockControl>(*Open("MOCK"))->live_blocks() == 0);
}

TEST_CASE("a device that changes bytes is found out, and the tensor named") {
  const TempDir dir;
  const std::string path = dir.Write("weights.bin", TextPattern(5000));
  Backend worn;
  worn.name = "WORN";
  worn.open = [](const OpenRequest&) {
    Allocator<CpuBuf> record = CpuAllocator();
    record.copyout = [copyout = record.copyout](absl::Span<std::byte> dest, const CpuBuf& src) {
      absl::Status copied = copyout(dest, src);
      dest.back() ^= std::byte{1};
      return copied;
    };
    return Pack(record);
  };
  REQUIRE(Register(worn).ok());
  const absl::Status loaded = Load(path, "WORN", true, nullptr).status();
  CHECK(loaded.code() == absl::StatusCode::kDataLoss);
  CHECK(absl::StrContains(loaded.message(), "weights.bin"));
}

TEST_CASE("what is loaded onto a device that keeps no bytes is not verified, whatever the bytes are") {
  const TempDir dir;
  for (const std::string& bytes : {TextPattern(5000), std::string(5000, '\0')}) {
    for (const char* device : {"NULL", "NULL+lru"}) {
      const absl::Status loaded = Load(dir.Write("weights.bin", bytes), device, true, nullptr).status();
      CHECK(loaded.code() == absl::StatusCode::kFailedPrecondition);
      CHECK(absl::StrContains(loaded.message(), "NULL keeps no bytes"));
    }
  }
  CHECK(Load(dir.Write("empty", ""), "NULL", true, nullptr).ok());
}

TEST_CASE("bad files, devices and a device that is too small are errors, and nothing stays allocated") {
  const TempDir dir;
  const std::string path = dir.Write("weights.bin", TextPattern(5000));
  CHECK(Load(dir / "none", "CPU", false, nullptr).status().code() == absl::StatusCode::kNotFound);
  CHECK(Load(path, "NOSUCH", false, nullptr).status().code() == absl::StatusCode::kNotFound);
  CHECK(Load(dir.Write("x.safetensors", "short"), "CPU", false, nullptr).status().code() ==
        absl::StatusCode::kInvalidArgument);
  const std::shared_ptr<MockControl> mock = Find<MockControl>(*Open("MOCK"));
  mock->FailNth(Member::kAlloc, 1, absl::ResourceExhaustedError("full"));
  const absl::Status full = Load(path, "MOCK", false, nullptr).status();
  CHECK(full.code() == absl::StatusCode::kResourceExhausted);
  CHECK(absl::StrContains(full.message(), "weights.bin"));
  mock->FailNth(Member::kHostPtr, 1, absl::DataLossError("link"));
  CHECK(Load(path, "MOCK", false, nullptr).status().code() == absl::StatusCode::kDataLoss);
  CHECK(Load(path, "MOCK", false, [](std::uint64_t, std::uint64_t) { return false; }).status().code() ==
        absl::StatusCode::kCancelled);
  CHECK(mock->live_blocks() == 0);
  CHECK(mock->misuses().empty());
}

}  // namespace
}  // namespace packalloc
