// Checked: each mistake is found, on a typed record and packed, over a cache too, and told with where it came from.
#include "packalloc/layers/checked.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "packalloc/backends/cpu.h"
#include "packalloc/backends/disk.h"
#include "packalloc/backends/mock.h"
#include "packalloc/backends/null.h"
#include "packalloc/layers/limited.h"
#include "packalloc/layers/lru.h"
#include "test/in_child.h"
#include "test/sanitizers.h"
#include "test/temp_dir.h"

namespace packalloc {

// Not inlined, with a name to be found in reports.
__attribute__((noinline)) absl::StatusOr<AnyBuf> AllocateWeights(const PackedAllocator& device) {
  absl::StatusOr<AnyBuf> buf = device.alloc(4096);
  return buf;
}
__attribute__((noinline)) absl::Status ReleaseWeights(const PackedAllocator& device, const AnyBuf& buf) {
  absl::Status freed = device.free(buf, 4096);
  return freed;
}

namespace {

struct Subject {
  explicit Subject(CheckedOptions options = {}, MockOptions mock_options = {}, bool cache = false,
                   const Allocator<MockBuf>* over = nullptr) {
    const Allocator<MockBuf> record = over != nullptr ? *over : MockAllocator(std::move(mock_options));
    mock = Find<MockControl>(record);
    if (!options.on_fault) {
      options.on_fault = [faults = faults](const CheckedReport& report) { faults->push_back(report); };
    }
    PackedAllocator inner = *Pack(record);
    if (cache) inner = *Lru(inner);
    device = *Checked(inner, options);
    control = Find<CheckedControl>(device);
  }

  std::shared_ptr<std::vector<CheckedReport>> faults = std::make_shared<std::vector<CheckedReport>>();
  std::shared_ptr<MockControl> mock;
  PackedAllocator device;
  std::shared_ptr<CheckedControl> control;
};

// The status and the one report of a mistake.
void Found(const Subject& subject, const absl::Status& status, CheckedFault fault, absl::StatusCode code) {
  CHECK(status.code() == code);
  REQUIRE(subject.faults->size() == 1);
  CHECK(subject.faults->front().fault == fault);
  CHECK(status.message() == subject.faults->front().message);
  CHECK(subject.control->stats().faults == 1);
  CHECK(subject.mock->misuses().empty());  // it did not reach the device
  subject.faults->clear();
}

std::vector<std::byte> Bytes(std::size_t n, int value) {
  return std::vector<std::byte>(n, static_cast<std::byte>(value));
}

constexpr auto kFailed = absl::StatusCode::kFailedPrecondition;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST_CASE("a double free tells where the buffer was allocated and freed") {
  for (const bool cache : {false, true}) {
    Subject s({}, {}, cache);
    const AnyBuf buf = *AllocateWeights(s.device);
    CHECK(ReleaseWeights(s.device, buf).ok());
    const absl::Status again = s.device.free(buf, 4096);
    const CheckedReport report = s.faults->at(0);
    Found(s, again, CheckedFault::kDoubleFree, kFailed);
    REQUIRE(!report.allocated_at.empty());
    CHECK(report.allocated_at.front() == "packalloc::AllocateWeights()");
    REQUIRE(!report.freed_at.empty());
    CHECK(report.freed_at.front() == "packalloc::ReleaseWeights()");
    CHECK(absl::StrContains(report.message,
                            "MOCK: double free of a buffer of 4096 bytes; it was allocated by "
                            "packalloc::AllocateWeights() < "));
  }
}

TEST_CASE("over the cache, a stale handle is not taken for the next buffer in the same memory") {
  Subject s({}, {}, /*cache=*/true);
  const AnyBuf stale = *s.device.alloc(512);
  const AnyBuf view = *s.device.offset(stale, 100, 100);
  REQUIRE(s.device.free(stale, 512).ok());
  const AnyBuf next = *s.device.alloc(512);
  REQUIRE(next.get<MockBuf>()->block == stale.get<MockBuf>()->block);
  SUBCASE("free") { Found(s, s.device.free(stale, 512), CheckedFault::kDoubleFree, kFailed); }
  SUBCASE("copyin") { Found(s, s.device.copyin(stale, Bytes(8, 1)), CheckedFault::kUseAfterFree, kFailed); }
  SUBCASE("copyin through a view") {
    Found(s, s.device.copyin(view, Bytes(8, 1)), CheckedFault::kUseAfterFree, kFailed);
  }
  SUBCASE("copyout") {
    std::vector<std::byte> host(8);
    Found(s, s.device.copyout(absl::MakeSpan(host), stale), CheckedFault::kUseAfterFree, kFailed);
  }
  SUBCASE("offset") { Found(s, s.device.offset(stale, 8, 8).status(), CheckedFault::kUseAfterFree, kFailed); }
  SUBCASE("host_ptr") { Found(s, s.device.host_ptr(stale).status(), CheckedFault::kUseAfterFree, kFailed); }
  SUBCASE("transfer to") { Found(s, s.device.transfer(stale, next, 8), CheckedFault::kUseAfterFree, kFailed); }
  SUBCASE("transfer from") { Found(s, s.device.transfer(next, stale, 8), CheckedFault::kUseAfterFree, kFailed); }
  SUBCASE("addr, which has no status") {
    CHECK(*s.device.addr(stale) == DeviceAddress{});
    REQUIRE(s.faults->size() == 1);
    CHECK(s.faults->front().fault == CheckedFault::kUseAfterFree);
    s.faults->clear();
  }
  CHECK(s.device.free(next, 512).ok());
  CHECK(s.faults->empty());
}

TEST_CASE("the same when the stale handle comes from another thread, and when more was freed than is remembered") {
  Subject s({.history = 2}, {}, /*cache=*/true);
  AnyBuf stale;
  std::thread([&] {
    stale = *s.device.alloc(512);
    CHECK(s.device.free(stale, 512).ok());
  }).join();
  std::vector<AnyBuf> later;
  for (int i = 0; i < 5; ++i) {
    const AnyBuf buf = *s.device.alloc(512);
    REQUIRE(s.device.free(buf, 512).ok());
  }
  const AnyBuf next = *s.device.alloc(512);
  Found(s, s.device.copyin(stale, Bytes(8, 1)), CheckedFault::kForeign, kInvalid);
  CHECK(s.device.free(next, 512).ok());
}

TEST_CASE("frees with another spec are found, and in a typed record those with another size") {
  Subject s;
  const AnyBuf buf = *s.device.alloc(100, {.alignment = 256});
  CHECK(s.device.addr(buf)->value % 256 == 0);
  Found(s, s.device.free(buf, 100), CheckedFault::kSpecMismatch, kInvalid);
  CHECK(s.device.free(buf, 100, {.alignment = 256}).ok());

  const Allocator<CpuBuf> typed = *Checked(CpuAllocator());
  const CpuBuf cpu = *typed.alloc(100, {});
  CHECK(typed.free(cpu, 0, {}).code() == kInvalid);
  CHECK(typed.free(cpu, 200, {}).code() == kInvalid);
  CHECK(typed.free(cpu, 100, {}).ok());
}

TEST_CASE("a typed record: double, foreign and interior frees, use after free, ranges") {
  auto faults = std::make_shared<std::vector<CheckedFault>>();
  const Allocator<CpuBuf> record = *Checked(
      CpuAllocator(), {.on_fault = [faults](const CheckedReport& report) { faults->push_back(report.fault); }});
  const CpuBuf buf = *record.alloc(100, {});
  const CpuBuf view = *record.offset(buf, 50, 25);
  const CpuBuf view_of_view = *record.offset(view, 10, 5);
  std::vector<std::byte> host(100);
  CHECK(record.copyin(view_of_view, host).code() == absl::StatusCode::kOutOfRange);
  CHECK(record.copyin(CpuBuf{buf.data, 1000}, Bytes(101, 0)).code() == absl::StatusCode::kOutOfRange);
  CHECK(record.offset(view, 80, 0).status().code() == absl::StatusCode::kOutOfRange);
  CHECK(record.free(view, 50, {}).code() == kInvalid);
  CHECK(record.free(CpuBuf{host.data(), 100}, 100, {}).code() == kInvalid);
  CHECK(record.copyin(CpuBuf{host.data(), 100}, Bytes(10, 0)).code() == kInvalid);
  CHECK(record.free(buf, 100, {}).ok());
  CHECK(record.free(buf, 100, {}).code() == kFailed);
  CHECK(record.copyout(absl::MakeSpan(host), view).code() == kFailed);
  using F = CheckedFault;
  CHECK(*faults == std::vector<F>{F::kOutOfRange, F::kOutOfRange, F::kOutOfRange, F::kInterior, F::kForeign,
                                  F::kForeign, F::kDoubleFree, F::kUseAfterFree});
}

TEST_CASE("bytes written beside a buffer are found at its free, which frees it") {
  for (const bool lazy : {false, true}) {
    for (const std::ptrdiff_t where : {-1, -64, 100, 163}) {
      Subject s({}, {.lazy = lazy});
      const AnyBuf buf = *s.device.alloc(100);
      *(*s.device.host_ptr(buf) + where) = std::byte{1};
      const auto fault = where < 0 ? CheckedFault::kUnderrun : CheckedFault::kOverrun;
      const absl::Status freed = s.device.free(buf, 100);
      Found(s, freed, fault, absl::StatusCode::kDataLoss);
      CHECK(absl::StrContains(freed.message(), where < 0 ? (where == -1 ? "byte 1 before" : "byte 64 before")
                                                         : (where == 100 ? "byte 1 behind" : "byte 64 behind")));
      CHECK(s.mock->live_blocks() == 0);
    }
  }
}

TEST_CASE("fresh memory is poison, zeroed memory zero, freed memory poison of another kind") {
  Subject s({}, {.lazy = true}, /*cache=*/true);
  const auto is = [](const std::byte* at, std::size_t n, int value) {
    return std::all_of(at, at + n, [&](std::byte b) { return b == static_cast<std::byte>(value); });
  };
  const AnyBuf buf = *s.device.alloc(100000);
  const std::byte* at = *s.device.host_ptr(buf);
  CHECK(is(at, 100000, 0xCB));
  CHECK(s.device.copyin(buf, Bytes(100000, 7)).ok());
  CHECK(s.device.free(buf, 100000).ok());
  CHECK(s.device.synchronize().ok());
  CHECK(is(at, 100000, 0xDD));  // kept by the cache, so still there
  const AnyBuf again = *s.device.alloc(100000);
  CHECK(*s.device.host_ptr(again) == at);
  CHECK(is(at, 100000, 0xCB));
  CHECK(s.device.free(again, 100000).ok());
  const AnyBuf zero = *s.device.alloc(100, {.zero = true});
  CHECK(is(*s.device.host_ptr(zero), 100, 0));
  CHECK(s.device.free(zero, 100, {.zero = true}).ok());
}

TEST_CASE("memory of somebody else is neither guarded nor poisoned") {
  Subject s;
  std::vector<std::byte> mine = Bytes(100, 5);
  const BufferSpec spec{.external_ptr = reinterpret_cast<std::uintptr_t>(mine.data())};
  const AnyBuf buf = *s.device.alloc(100, spec);
  CHECK(s.control->stats().unguarded_buffers == 1);
  CHECK(s.device.free(buf, 100, spec).ok());
  CHECK(mine == Bytes(100, 5));
}

TEST_CASE("leaks are listed while it runs and told when the layer ends") {
  auto faults = std::make_shared<std::vector<CheckedReport>>();
  {
    Subject s({.on_fault = [faults](const CheckedReport& report) { faults->push_back(report); }});
    const AnyBuf leaked = *AllocateWeights(s.device);
    const AnyBuf freed = *AllocateWeights(s.device);
    CHECK(ReleaseWeights(s.device, freed).ok());
    REQUIRE(s.control->leaks().size() == 1);
    CHECK(s.control->stats().live_bytes == 4096);
    CHECK(faults->empty());
  }
  REQUIRE(faults->size() == 1);
  CHECK(faults->front().fault == CheckedFault::kLeak);
  CHECK(faults->front().allocated_at.at(0) == "packalloc::AllocateWeights()");
}

TEST_CASE("the option aborts at the very call, with the message") {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGABRT, SIG_DFL);  // not the test framework's
    dup2(ends[1], STDERR_FILENO);
    const PackedAllocator device = *Checked(*Pack(CpuAllocator()), {.abort_on_fault = true});
    const AnyBuf buf = *device.alloc(64);
    device.free(buf, 64).IgnoreError();
    device.free(buf, 64).IgnoreError();
    _exit(0);
  }
  close(ends[1]);
  std::string told(4096, '\0');
  const ssize_t n = read(ends[0], told.data(), told.size());
  close(ends[0]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGABRT);
  CHECK(n > 0);
  CHECK(absl::StrContains(told, "packalloc: CPU: double free of a buffer of 64 bytes"));
}

TEST_CASE("what the callback throws passes through, and the buffer stays whole") {
  Subject s({.on_fault = [](const CheckedReport& report) {
    if (report.fault != CheckedFault::kLeak) throw std::runtime_error(report.message);
  }});
  const AnyBuf buf = *s.device.alloc(64);
  CHECK_THROWS_AS(s.device.free(buf, 64, {.host = true}).IgnoreError(), std::runtime_error);
  *(*s.device.host_ptr(buf) + 64) = std::byte{0};
  CHECK_THROWS_AS(s.device.free(buf, 64).IgnoreError(), std::runtime_error);  // the overrun
  CHECK(s.control->stats().live_buffers == 1);
  CHECK(s.mock->live_blocks() == 1);
}

TEST_CASE("a free that the device refuses leaves the buffer allocated; the next one works") {
  Subject s;
  const AnyBuf buf = *s.device.alloc(64);
  s.mock->FailNth(Member::kFree, 1, absl::UnavailableError("busy"));
  CHECK(s.device.free(buf, 64).code() == absl::StatusCode::kUnavailable);
  s.mock->ThrowNth(Member::kFree, 1, std::make_exception_ptr(std::runtime_error("thrown")));
  CHECK_THROWS_AS(s.device.free(buf, 64).IgnoreError(), std::runtime_error);
  CHECK(s.control->stats().live_buffers == 1);
  CHECK(s.device.copyin(buf, Bytes(64, 1)).ok());
  CHECK(s.device.free(buf, 64).ok());
  CHECK(s.faults->empty());
}

TEST_CASE("guards that cannot be made are left out, and the allocation goes on") {
  for (const Member call : {Member::kOffset, Member::kHostPtr, Member::kCopyin}) {
    Subject s;
    s.mock->ThrowAll(call, std::make_exception_ptr(std::runtime_error("thrown")));
    const absl::StatusOr<AnyBuf> buf = s.device.alloc(64);
    s.mock->ClearFailures();
    REQUIRE(buf.ok());
    CHECK(s.control->stats().unguarded_buffers == 1);
    CHECK(s.device.copyin(*buf, Bytes(64, 1)).ok());
    CHECK(s.device.free(*buf, 64).ok());
    CHECK(s.mock->live_blocks() == 0);
  }
  for (const std::uint64_t nth : {1, 2, 3}) {  // half-way: zeroed memory stays zero
    Subject s;
    s.mock->FailNth(Member::kOffset, nth, absl::UnavailableError("no"));
    const AnyBuf buf = *s.device.alloc(64, {.zero = true});
    std::vector<std::byte> host = Bytes(64, 1);
    CHECK(s.device.copyout(absl::MakeSpan(host), buf).ok());
    CHECK(host == Bytes(64, 0));
    CHECK(s.device.free(buf, 64, {.zero = true}).ok());
  }
}

TEST_CASE("a size that only the guards make too large is granted without them") {
  Subject s({}, {.max_alloc_bytes = 1000});
  const AnyBuf buf = *s.device.alloc(1000);
  CHECK(s.device.free(buf, 1000).ok());
  CHECK(s.device.alloc(1001).status().code() == absl::StatusCode::kResourceExhausted);
}

TEST_CASE("a typed and a packed user of one checker know each other's buffers") {
  const PackedAllocator device = *Checked(*Pack(CpuAllocator()));
  const Allocator<CpuBuf> typed = *device.unpack<CpuBuf>();
  const CpuBuf one = *typed.alloc(64, {});
  const AnyBuf two = *device.alloc(64);  // has the number that was expected of the first
  CHECK(device.copyin(two, Bytes(64, 1)).ok());
  CHECK(typed.copyin(*two.get<CpuBuf>(), Bytes(64, 1)).ok());
  CHECK(typed.copyin(one, Bytes(64, 1)).ok());
  CHECK(typed.free(one, 64, {}).ok());
  CHECK(typed.free(*two.get<CpuBuf>(), 64, {}).ok());
  CHECK(device.free(two, 64).code() == kFailed);
}

TEST_CASE("a layer further out that allocates elsewhere, too, does not confuse it") {
  const PackedAllocator elsewhere = *Pack(CpuAllocator());
  auto faults = std::make_shared<std::vector<CheckedFault>>();
  const PackedAllocator checked = *Checked(
      *Lru(*Pack(CpuAllocator())), {.on_fault = [faults](const CheckedReport& r) { faults->push_back(r.fault); }});
  const PackedAllocator device = *ApplyLayer(checked, [&](AnyRecord inner) -> absl::StatusOr<AnyRecord> {
    inner.alloc = [alloc = inner.alloc, elsewhere](std::size_t nbytes, const BufferSpec& spec) {
      absl::StatusOr<AnyBuf> buf = alloc(nbytes, spec);
      const AnyBuf scratch = *elsewhere.alloc(8);
      elsewhere.free(scratch, 8).IgnoreError();
      return buf;
    };
    return inner;
  });
  const AnyBuf first = *device.alloc(64);
  CHECK(device.copyin(first, Bytes(64, 1)).ok());
  CHECK(device.free(first, 64).ok());
  const AnyBuf second = *device.alloc(64);
  CHECK(device.copyin(first, Bytes(64, 1)).code() == kFailed);
  CHECK(device.copyin(second, Bytes(64, 1)).ok());
  CHECK(device.free(second, 64).ok());
  CHECK(*faults == std::vector<CheckedFault>{CheckedFault::kUseAfterFree});
}

TEST_CASE("transfer takes a buffer of another allocator of the domain") {
  const Allocator<MockBuf> record = MockAllocator();
  Subject s({}, {}, false, &record);
  const PackedAllocator other = *Pack(record);
  const AnyBuf theirs = *other.alloc(64);
  const AnyBuf ours = *s.device.alloc(64);
  CHECK(s.device.transfer(ours, theirs, 64).ok());
  CHECK(s.device.transfer(theirs, ours, 64).ok());
  CHECK(s.device.free(ours, 64).ok());
  CHECK(other.free(theirs, 64).ok());
  CHECK(s.faults->empty());
}

#if PACKALLOC_FORKS_AMONG_THREADS
TEST_CASE("a forked child uses a checked allocator while the parent's threads allocate and free") {
  const PackedAllocator device = *Checked(*Pack(NullAllocator()));
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) CHECK(device.free(*device.alloc(64), 64).ok());
  });
  for (int i = 0; i < 200; ++i) {
    REQUIRE(HoldsInChild([&] {
      bool ok = true;
      for (int n = 0; n < 20; ++n) ok = ok && device.free(*device.alloc(64), 64).ok();
      return ok;
    }));
  }
  stop = true;
  busy.join();
}
#endif

}  // namespace
}  // namespace packalloc
