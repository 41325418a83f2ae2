#include "packalloc/backends/mock.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "packalloc/packed_allocator.h"

namespace packalloc {
namespace {

using Bytes = std::vector<std::byte>;
using Lines = std::vector<std::string>;

Bytes Filled(std::size_t n, int value) { return Bytes(n, static_cast<std::byte>(value)); }

Bytes Read(const Allocator<MockBuf>& record, const MockBuf& buf) {
  Bytes bytes(buf.nbytes);
  CHECK(record.copyout(absl::MakeSpan(bytes), buf).ok());
  return bytes;
}

struct Mock {
  explicit Mock(MockOptions options = {}) : record(MockAllocator(std::move(options))) {}
  MockBuf Alloc(std::size_t n, const BufferSpec& spec = {}) const { return record.alloc(n, spec).value(); }
  Allocator<MockBuf> record;
  std::shared_ptr<MockControl> control = Find<MockControl>(record);
};

TEST_CASE("the log tells each call, its arguments and its answer") {
  Mock mock;
  const MockBuf a = mock.Alloc(4096);
  const MockBuf b = mock.Alloc(64);
  const MockBuf view = mock.record.offset(a, 128, 256).value();
  CHECK(mock.record.copyin(view, Filled(16, 1)).ok());
  mock.control->log().Add("kernel add");
  CHECK(mock.record.transfer(b, view, 64).ok());
  Bytes out(8);
  CHECK(mock.record.copyout(absl::MakeSpan(out), b).ok());
  (void)mock.record.addr(a);
  CHECK(mock.record.host_ptr(view).ok());
  CHECK(mock.record.memory_info().ok());
  CHECK(mock.record.synchronize().ok());
  CHECK(mock.record.free(a, 4096, {}).ok());
  CHECK(mock.record.free(b, 63, {}).code() == absl::StatusCode::kInvalidArgument);
  CHECK(mock.control->log().Lines() == Lines{"MOCK: alloc 4096 -> #1", "MOCK: alloc 64 -> #2",
                                             "MOCK: offset #1 128 -> #1+256", "MOCK: copyin #1+256 16", "kernel add",
                                             "MOCK: transfer #2 <- #1+256 64", "MOCK: copyout #2 8", "MOCK: addr #1",
                                             "MOCK: host_ptr #1+256", "MOCK: memory_info", "MOCK: synchronize",
                                             "MOCK: free #1 4096", "MOCK: free #2 63: INVALID_ARGUMENT"});
  CHECK(mock.control->log().Lines({kUserEntry, Member::kTransfer}) ==
        Lines{"kernel add", "MOCK: transfer #2 <- #1+256 64"});
  CHECK(mock.control->log().Count(Member::kFree) == 2);
  mock.control->log().Clear();
  CHECK(mock.control->log().entries().empty());
  CHECK(mock.record.free(b, 64, {}).ok());
}

TEST_CASE("one log spans several mocks") {
  const auto log = std::make_shared<MockLog>();
  Mock a({.name = "A", .log = log});
  Mock b({.name = "B", .log = log});
  a.Alloc(1);
  log->Add("between");
  b.Alloc(2);
  a.Alloc(3);
  CHECK(log->Lines() == Lines{"A: alloc 1 -> #1", "between", "B: alloc 2 -> #1", "A: alloc 3 -> #2"});
}

TEST_CASE("any call of any member fails as scripted, and then works") {
  Mock mock;
  const MockBuf a = mock.Alloc(64);
  CHECK(mock.record.copyin(a, Filled(64, 7)).ok());
  const absl::Status down = absl::UnavailableError("link down");
  const std::vector<std::pair<Member, std::function<absl::Status()>>> members = {
      {Member::kAlloc, [&] { return mock.record.alloc(8, {}).status(); }},
      {Member::kFree, [&] { return mock.record.free(a, 64, {}); }},
      {Member::kCopyin, [&] { return mock.record.copyin(a, Filled(64, 7)); }},
      {Member::kCopyout, [&] { return mock.record.copyout({}, a); }},
      {Member::kOffset, [&] { return mock.record.offset(a, 1, 0).status(); }},
      {Member::kTransfer, [&] { return mock.record.transfer(a, a, 64); }},
      {Member::kHostPtr, [&] { return mock.record.host_ptr(a).status(); }},
      {Member::kMemoryInfo, [&] { return mock.record.memory_info().status(); }},
      {Member::kSynchronize, [&] { return mock.record.synchronize(); }},
  };
  for (const auto& [call, run] : members) {
    if (call == Member::kFree || call == Member::kCopyout) continue;  // below: they change, or want a span
    const std::string name(ToString(call));                           // a structured binding cannot be captured
    CAPTURE(name);
    mock.control->FailNth(call, 2, down);
    mock.control->ThrowNth(call, 4, std::make_exception_ptr(std::runtime_error("thrown")));
    CHECK(run().ok());
    CHECK(run() == down);
    CHECK(run().ok());
    CHECK_THROWS_AS((void)run(), std::runtime_error);
    CHECK(run().ok());
    mock.control->FailAll(call, down);
    CHECK(run() == down);
    CHECK(run() == down);
    mock.control->ClearFailures();
    CHECK(run().ok());
  }
  Bytes out(64);
  mock.control->FailNth(Member::kCopyout, 1, down);
  CHECK(mock.record.copyout(absl::MakeSpan(out), a) == down);
  CHECK(out == Bytes(64));
  mock.control->FailNth(Member::kFree, 1, down);
  CHECK(mock.record.free(a, 64, {}) == down);
  CHECK(Read(mock.record, a) == Filled(64, 7));
  mock.control->ThrowAll(Member::kFree, std::make_exception_ptr(42));
  CHECK_THROWS_AS((void)mock.record.free(a, 64, {}), int);
  mock.control->ClearFailures();
  CHECK(mock.record.free(a, 64, {}).ok());
  mock.control->FailNth(Member::kAddr, 1, down);
  const MockBuf b = mock.Alloc(8);
  CHECK(mock.record.addr(b) == DeviceAddress{});
  CHECK(mock.record.addr(b) != DeviceAddress{});
  CHECK(mock.control->misuses().empty());
}

TEST_CASE("a hook runs without a lock and may call the record") {
  Mock mock;
  const MockBuf a = mock.Alloc(8);
  mock.control->OnCall(Member::kAlloc, [&] {
    absl::Status status = mock.record.copyin(a, Filled(8, 1));
    std::thread([&] { status.Update(mock.record.synchronize()); }).join();
    return status;
  });
  CHECK(mock.record.alloc(16, {}).ok());
}

TEST_CASE("a capacity: beyond it is RESOURCE_EXHAUSTED, and free makes room") {
  Mock mock({.capacity_bytes = 1000, .max_alloc_bytes = 900});
  CHECK(mock.record.alloc(901, {}).status().code() == absl::StatusCode::kResourceExhausted);
  const MockBuf a = mock.Alloc(600);
  CHECK(mock.record.alloc(401, {}).status().code() == absl::StatusCode::kResourceExhausted);
  const MockBuf b = mock.Alloc(400);
  CHECK(mock.record.memory_info()->free_bytes == 0);
  CHECK(mock.control->live_bytes() == 1000);
  CHECK(mock.control->live().size() == 2);
  CHECK(mock.record.free(a, 600, {}).ok());
  CHECK(mock.control->live_bytes() == 400);
  CHECK(mock.control->peak_live_bytes() == 1000);
  const MockBuf c = mock.Alloc(600);
  CHECK(mock.record.free(b, 400, {}).ok());
  CHECK(mock.record.free(c, 600, {}).ok());
  CHECK(mock.control->live_blocks() == 0);
}

TEST_CASE("wrong uses are errors, and remembered") {
  Mock mock;
  Mock other;
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  const MockBuf a = mock.Alloc(64, {.alignment = 64});
  const MockBuf foreign = other.Alloc(64);
  CHECK(mock.record.free(foreign, 64, {}).code() == kInvalid);
  CHECK(mock.record.free(a, 65, {.alignment = 64}).code() == kInvalid);
  CHECK(mock.record.free(a, 64, {}).code() == kInvalid);
  CHECK(mock.record.free(mock.record.offset(a, 32, 0).value(), 32, {.alignment = 64}).code() == kInvalid);
  CHECK(mock.control->misuses().size() == 4);
  CHECK(mock.record.free(a, 64, {.alignment = 64}).ok());
  CHECK(mock.record.free(a, 64, {.alignment = 64}).code() == kInvalid);
  CHECK(mock.record.copyin(a, Filled(8, 0)).code() == kInvalid);
  CHECK(mock.record.host_ptr(a).status().code() == kInvalid);
  CHECK(mock.control->misuses().size() == 7);
  CHECK(mock.control->misuses()[4] == "free: block #1 of MOCK was freed before");
  CHECK(mock.record.transfer(a, foreign, 8).code() == kInvalid);
  CHECK(other.control->misuses().empty());
}

TEST_CASE("lazy: nothing happens until something demands it") {
  Mock mock({.lazy = true});
  const MockBuf a = mock.Alloc(64);
  const MockBuf b = mock.Alloc(64);
  const std::byte* at_a = mock.record.host_ptr(a).value();
  const std::byte* at_b = mock.record.host_ptr(b).value();
  CHECK(mock.record.copyin(a, Filled(64, 1)).ok());
  CHECK(mock.record.copyin(b, Filled(64, 2)).ok());
  // A missing synchronize shows: what the CPU sees is still the poison of fresh memory.
  CHECK(*at_a == std::byte{0xCB});
  CHECK(mock.control->pending() == 2);
  CHECK(Read(mock.record, a) == Filled(64, 1));  // demands a's, not b's
  CHECK(*at_b == std::byte{0xCB});
  CHECK(mock.control->pending() == 1);
  CHECK(mock.record.transfer(a, b, 64).ok());
  CHECK(*at_a == std::byte{1});
  CHECK(mock.record.synchronize().ok());
  CHECK(*at_a == std::byte{2});
  CHECK(mock.control->pending() == 0);
}

TEST_CASE("lazy: a transfer's source may be freed at once, and external memory is done with after free") {
  Mock mock({.lazy = true});
  const MockBuf a = mock.Alloc(64);
  const MockBuf b = mock.Alloc(64);
  CHECK(mock.record.copyin(a, Filled(64, 3)).ok());
  CHECK(mock.record.transfer(b, a, 64).ok());
  CHECK(mock.record.free(a, 64, {}).ok());
  CHECK(Read(mock.record, b) == Filled(64, 3));
  Bytes memory(64);
  const BufferSpec wrap{.external_ptr = reinterpret_cast<std::uintptr_t>(memory.data())};
  const MockBuf c = mock.Alloc(64, wrap);
  CHECK(mock.record.transfer(c, b, 64).ok());
  CHECK(memory == Bytes(64));
  CHECK(mock.record.free(c, 64, wrap).ok());
  CHECK(memory == Filled(64, 3));
}

TEST_CASE("a launched kernel runs in its place among the copies") {
  for (const bool lazy : {false, true}) {
    Mock mock({.lazy = lazy});
    const MockBuf a = mock.Alloc(64);
    CHECK(mock.record.copyin(a, Filled(64, 1)).ok());
    const auto increment = [&] {
      const absl::Span<std::byte> bytes = mock.control->Bytes(a).value();
      for (std::byte& b : bytes) b = static_cast<std::byte>(static_cast<int>(b) + 1);
    };
    CHECK(mock.control->Launch("increment", {a}, increment).ok());
    CHECK(mock.control->pending() == (lazy ? 2 : 0));
    CHECK(mock.record.copyin(a, Filled(32, 9)).ok());
    Bytes wanted = Filled(64, 2);
    std::fill_n(wanted.begin(), 32, std::byte{9});
    CHECK(Read(mock.record, a) == wanted);
    CHECK(mock.control->log().Lines() == Lines{"MOCK: alloc 64 -> #1", "MOCK: copyin #1 64", "increment",
                                               "MOCK: copyin #1 32", "MOCK: copyout #1 64"});
  }
}

TEST_CASE("a kernel that throws leaves what follows it for the next demand") {
  Mock mock({.lazy = true});
  const MockBuf a = mock.Alloc(8);
  CHECK(mock.control->Launch("bad", {a}, [] { throw std::runtime_error("kernel"); }).ok());
  CHECK(mock.record.copyin(a, Filled(8, 5)).ok());
  CHECK_THROWS_AS((void)mock.record.synchronize(), std::runtime_error);
  CHECK(mock.control->pending() == 1);
  CHECK(Read(mock.record, a) == Filled(8, 5));
}

TEST_CASE("mocks of one transfer domain copy between their buffers, each with its own synchronize") {
  Mock a({.name = "A", .lazy = true});
  Mock b({.name = "B", .lazy = true, .transfers_with = a.control});
  Mock stranger({.name = "C"});
  CHECK(a.record.traits.transfer_domain == b.record.traits.transfer_domain);
  CHECK(a.record.traits.transfer_domain != stranger.record.traits.transfer_domain);
  const MockBuf x = a.Alloc(16);
  const MockBuf y = b.Alloc(16);
  const MockBuf other = b.Alloc(16);
  CHECK(a.record.copyin(x, Filled(16, 4)).ok());
  CHECK(b.record.transfer(y, x, 16).ok());
  CHECK(b.record.copyin(other, Filled(16, 6)).ok());
  CHECK(a.record.synchronize().ok());
  CHECK(b.control->pending() == 2);
  CHECK(b.record.synchronize().ok());
  CHECK(*b.record.host_ptr(y).value() == std::byte{4});
  CHECK(b.record.transfer(y, stranger.Alloc(16), 16).code() == absl::StatusCode::kInvalidArgument);
  // Packed, the domain decides too.
  const PackedAllocator pa = Pack(a.record).value();
  const PackedAllocator pb = Pack(b.record).value();
  CHECK(pa.same_transfer_domain(pb));
  CHECK(pa.transfer(pa.alloc(8).value(), pb.alloc(8).value(), 8).ok());
}

TEST_CASE("mocks of one memory domain share a capacity") {
  Mock a({.capacity_bytes = 100});
  Mock b({.shares_memory_with = a.control});
  CHECK(a.record.traits.memory_domain == b.record.traits.memory_domain);
  CHECK(a.record.traits.transfer_domain != b.record.traits.transfer_domain);
  const MockBuf x = a.Alloc(60);
  CHECK(b.record.alloc(41, {}).status().code() == absl::StatusCode::kResourceExhausted);
  CHECK(a.record.free(x, 60, {}).ok());
  {
    Mock c({.shares_memory_with = a.control});
    c.Alloc(100);
    CHECK(b.record.alloc(1, {}).status().code() == absl::StatusCode::kResourceExhausted);
  }
  CHECK(b.record.alloc(100, {}).ok());  // what C left went with it
}

TEST_CASE("sizes beyond 32 bits reach the device whole and take no memory") {
  Mock mock;
  const std::size_t n = (std::size_t{1} << 32) + 1;
  const MockBuf a = mock.Alloc(n);
  CHECK(mock.control->log().entries()[0].nbytes == 4294967297);
  CHECK(mock.control->live_bytes() == 4294967297);
  const MockBuf end = mock.record.offset(a, 3, n - 3).value();
  CHECK(Read(mock.record, end) == Filled(3, 0xCB));
  CHECK(mock.record.copyin(end, Filled(3, 1)).ok());
  CHECK(Read(mock.record, end) == Filled(3, 1));
  CHECK(mock.record.free(a, n, {}).ok());
  const MockBuf zero = mock.Alloc(n, {.zero = true});
  CHECK(Read(mock.record, mock.record.offset(zero, 3, n - 3).value()) == Bytes(3));
  CHECK(mock.record.free(zero, n, {.zero = true}).ok());
}

TEST_CASE("sizes that no process can have are errors that change nothing") {
  Mock mock;
  const std::size_t most = std::numeric_limits<std::size_t>::max();
  for (const std::size_t n : {most, most - 100, most - 510, most / 2 + 1}) {
    CHECK(mock.record.alloc(n, {}).status().code() == absl::StatusCode::kInvalidArgument);
  }
  CHECK(mock.control->live_blocks() == 0);
  CHECK(mock.Alloc(512) != mock.Alloc(512));
  // Twice what there are addresses for.
  CHECK(mock.record.alloc(most / 2, {}).ok());
  CHECK(mock.record.alloc(most / 2, {}).status().code() == absl::StatusCode::kResourceExhausted);
}

TEST_CASE("fresh memory is poison, each part of it") {
  Mock mock({.poison = std::byte{0x5A}});
  CHECK(Read(mock.record, mock.Alloc(3 << 20)) == Filled(3 << 20, 0x5A));
  const MockBuf a = mock.Alloc(100);
  const std::byte* at = mock.record.host_ptr(a).value();
  CHECK(Bytes(at, at + 100) == Filled(100, 0x5A));
}

TEST_CASE("members that are absent stay empty when packed") {
  const PackedAllocator packed = Pack(MockAllocator({.absent = {Member::kOffset, Member::kTransfer, Member::kHostPtr,
                                                                Member::kMemoryInfo, Member::kSynchronize}}))
                                     .value();
  CHECK_FALSE(packed.supports_offset());
  CHECK_FALSE(packed.supports_transfer());
  CHECK_FALSE(packed.supports_host_ptr());
  CHECK_FALSE(packed.supports_copy_from_disk());
  const AnyBuf buf = packed.alloc(8).value();
  constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;
  CHECK(packed.offset(buf, 1, 0).status().code() == kUnimplemented);
  CHECK(packed.transfer(buf, buf, 8).code() == kUnimplemented);
  CHECK(packed.copy_from_disk(buf, {nullptr, 0, 8}, 8).code() == kUnimplemented);
  CHECK(packed.memory_info().status().code() == kUnimplemented);
  CHECK(packed.synchronize().ok());
}

TEST_CASE("an alloc callback that replaces its own record runs to its end") {
  struct Holder {
    Allocator<MockBuf> record;
  };
  auto holder = std::make_shared<Holder>();
  const Allocator<MockBuf> first = MockAllocator();
  holder->record = first;
  holder->record.alloc = [holder, inner = first.alloc](std::size_t n, const BufferSpec& spec) {
    holder->record = MockAllocator();
    return inner(n, spec);
  };
  PackedAllocator packed = Pack(holder->record).value();
  holder.reset();
  const AnyBuf buf = packed.alloc(32).value();
  PackedAllocator copy = packed;
  CHECK(copy.free(buf, 32).ok());
  const PackedAllocator moved = std::move(packed);
  CHECK(packed.alloc(8).status().code() == absl::StatusCode::kFailedPrecondition);  // NOLINT(bugprone-use-after-move)
  CHECK(moved == copy);
}

}  // namespace
}  // namespace packalloc
