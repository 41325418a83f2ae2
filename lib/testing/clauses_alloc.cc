// Clauses on the record as a whole, on alloc and on free.
#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <utility>

#include "lib/checked_math.h"
#include "lib/testing/run.h"

namespace packalloc::testing {
namespace {

void RequiredMembers(Run& run) {
  const AnyRecord& r = run.record();
  run.Expect(static_cast<bool>(r.alloc), "alloc is not set");
  run.Expect(static_cast<bool>(r.free), "free is not set");
  run.Expect(static_cast<bool>(r.copyin), "copyin is not set");
  run.Expect(static_cast<bool>(r.copyout), "copyout is not set");
  run.Expect(static_cast<bool>(r.addr), "addr is not set");
}

void Traits(Run& run) {
  const AllocatorTraits& t = run.traits();
  run.Expect(!t.name.empty(), "traits.name is empty");
  run.Expect(IsPowerOfTwo(t.min_alignment), "traits.min_alignment is ", t.min_alignment, ", not a power of two");
  run.Expect(t.max_alloc_bytes > 0, "traits.max_alloc_bytes is 0");
}

void CopiesShareState(Run& run) {
  AnyRecord copy = run.Copy();
  Block& a = run.Alloc(100);
  absl::StatusOr<AnyBuf> buf = copy.alloc(100, {});
  run.RequireOk(buf.status(), "alloc of 100 bytes by a copy of the record");
  Block& b = run.Keep(*buf, 100);
  run.Fill(a.buf, 100, 1);
  run.RequireOk(copy.copyin(b.buf, Pattern(2, 100)), "copyin of 100 bytes by a copy of the record");
  run.Holds(a.buf, 100, 1, "a buffer of the record, beside one of its copy");
  run.Holds(b.buf, 100, 2, "a buffer of a copy of the record, read through the original");
  run.Free(b);
  a.freed = true;
  run.ExpectOk(copy.free(a.buf, 100, {}), "free by a copy of the record");
}

void CopyKeepsState(Run& run) {
  Subject other = run.Another();
  absl::StatusOr<AnyBuf> buf = other.record.alloc(100, {});
  run.RequireOk(buf.status(), "alloc of 100 bytes");
  const AnyRecord copy = other.copy();
  other = Subject();
  const Bytes wanted = Pattern(2, 100);
  run.ExpectOk(copy.copyin(*buf, wanted), "copyin by a copy of a record that is gone");
  Bytes got(100);
  run.ExpectOk(copy.copyout(absl::MakeSpan(got), *buf), "copyout by a copy of a record that is gone");
  run.Same(got, wanted, "copyout by a copy of a record that is gone");
  absl::StatusOr<AnyBuf> further = copy.alloc(100, {});
  run.ExpectOk(further.status(), "alloc by a copy of a record that is gone");
  if (further.ok()) run.ExpectOk(copy.free(*further, 100, {}), "free by a copy of a record that is gone");
  run.ExpectOk(copy.free(*buf, 100, {}), "free by a copy of a record that is gone");
}

void HandleIsAValue(Run& run) {
  const Block& block = run.Alloc(100);
  run.Fill(block.buf, 100, 3);
  {
    const AnyBuf copy = block.buf;
    run.Holds(copy, 100, 3, "a copy of the handle");
    run.Expect(run.record().addr(copy) == run.record().addr(block.buf), "addr of a copy of the handle differs");
  }
  run.Holds(block.buf, 100, 3, "the handle after a copy of it was dropped");
}

// ---- alloc ----

void UsableBytes(Run& run) {
  for (const std::size_t n : {1u, 2u, 3u, 63u, 64u, 65u, 4095u, 4096u, 4097u, (1u << 20) + 3}) {
    Block& block = run.Alloc(n);
    run.Fill(block.buf, n, 4);
    run.Holds(block.buf, n, 4, absl::StrCat("a buffer of ", n, " bytes"));
    run.Free(block);
  }
}

void DistinctMemory(Run& run) {
  std::vector<Block*> blocks;
  for (std::uint32_t i = 0; i < 24; ++i) {
    blocks.push_back(&run.Alloc(100 + i % 3));
    run.Fill(blocks.back()->buf, blocks.back()->nbytes, i);
  }
  // Some go and come again: what lies around them stays.
  for (std::uint32_t i = 0; i < 24; i += 3) {
    run.Free(*blocks[i]);
    blocks[i] = &run.Alloc(100);
    run.Fill(blocks[i]->buf, 100, i + 100);
  }
  for (std::uint32_t i = 0; i < 24; ++i) {
    run.Holds(blocks[i]->buf, blocks[i]->nbytes, i % 3 == 0 ? i + 100 : i, "one of several live buffers");
  }
}

void CheckAlignment(Run& run, const Block& block, std::size_t alignment) {
  if (run.traits().address_is_pointer) {
    const DeviceAddress address = run.record().addr(block.buf);
    run.Expect(address.value % alignment == 0, "address 0x", absl::Hex(address.value), " of ", block.nbytes,
               " bytes is not aligned to ", alignment);
  }
  if (!run.record().host_ptr) return;
  const absl::StatusOr<std::byte*> at = run.record().host_ptr(block.buf);
  if (!at.ok()) return;
  run.Expect(reinterpret_cast<std::uintptr_t>(*at) % alignment == 0, "host_ptr of ", block.nbytes,
             " bytes is not aligned to ", alignment);
}

constexpr std::size_t kSizes[] = {1, 24, 100, 4096, 5000, 100001};

void DefaultAlignment(Run& run) {
  const std::size_t alignment = run.traits().min_alignment;
  if (!IsPowerOfTwo(alignment)) return;  // record.traits says so
  for (const std::size_t n : kSizes) {
    for (int i = 0; i < 4; ++i) CheckAlignment(run, run.Alloc(n), alignment);
  }
}

void Alignment(Run& run) {
  for (const std::size_t alignment : {1u, 2u, 8u, 64u, 256u, 4096u, 65536u, 1u << 21}) {
    for (const std::size_t n : kSizes) {
      Block* block = run.AllocIfGranted(n, {.alignment = alignment});
      if (block == nullptr) continue;
      CheckAlignment(run, *block, alignment);
      run.Fill(block->buf, n, 5);
      run.Holds(block->buf, n, 5, absl::StrCat("a buffer aligned to ", alignment));
    }
  }
}

// A buffer that was freed with a small alignment must not come back for a larger one.
void AlignmentAfterReuse(Run& run) {
  std::vector<Block*> blocks;
  for (int i = 0; i < 16; ++i) {
    Block* block = run.AllocIfGranted(2048, {.alignment = 64});
    if (block != nullptr) blocks.push_back(block);
  }
  for (Block* block : blocks) run.Free(*block);
  for (int i = 0; i < 16; ++i) {
    if (Block* block = run.AllocIfGranted(2048, {.alignment = 4096})) CheckAlignment(run, *block, 4096);
  }
}

void RefusedAlloc(Run& run, std::size_t nbytes, const BufferSpec& spec, absl::StatusCode code) {
  absl::StatusOr<AnyBuf> buf = run.record().alloc(nbytes, spec);
  if (buf.ok()) (void)run.record().free(*buf, nbytes, spec);
  run.ExpectCode(buf.status(), code, absl::StrCat("alloc of ", nbytes, " bytes with ", ToString(spec)));
}

void BadAlignment(Run& run) {
  for (const std::size_t alignment : {std::size_t{3}, std::size_t{48}, std::size_t{100}, std::size_t{1} << 63, kMax}) {
    RefusedAlloc(run, 96, {.alignment = alignment}, absl::StatusCode::kInvalidArgument);
  }
}

void ZeroBytes(Run& run) {
  Block& a = run.Alloc(0);
  Block& b = run.Alloc(0);
  run.ExpectOk(run.record().copyin(a.buf, {}), "copyin of 0 bytes");
  run.ExpectOk(run.record().copyout({}, a.buf), "copyout of 0 bytes");
  if (run.record().transfer) run.ExpectOk(run.record().transfer(a.buf, b.buf, 0), "transfer of 0 bytes");
  if (run.record().offset) run.ExpectOk(run.record().offset(a.buf, 0, 0).status(), "a view of 0 bytes at 0");
  run.Free(a);
  run.Free(b);
  Block& c = run.Alloc(4096);
  run.Fill(c.buf, 4096, 6);
  run.Holds(c.buf, 4096, 6, "a buffer after one of 0 bytes was freed");
}

void ZeroBytesReachNoDriver(Run& run) {
  const std::size_t before = run.options().driver_calls();
  Block& a = run.Alloc(0);
  Block& b = run.Alloc(0);
  (void)run.record().copyin(a.buf, {});
  (void)run.record().copyout({}, a.buf);
  if (run.record().transfer) (void)run.record().transfer(a.buf, b.buf, 0);
  run.Free(a);
  run.Free(b);
  const std::size_t after = run.options().driver_calls();
  run.Expect(after == before, "operations on 0 bytes made ", after - before, " driver calls");
}

void TooLarge(Run& run) {
  for (const std::size_t n : {kMax, kMax - 100, kMax - 510, kMax - 4095, kMax / 2 + 1}) {
    RefusedAlloc(run, n, {}, absl::StatusCode::kInvalidArgument);
    absl::StatusOr<AnyBuf> aligned = run.record().alloc(n, {.alignment = 4096});
    if (aligned.ok()) (void)run.record().free(*aligned, n, {.alignment = 4096});
    run.ExpectCode(aligned.status(), absl::StatusCode::kInvalidArgument,
                   absl::StrCat("alloc of ", n, " bytes aligned to 4096"));
  }
  Block& a = run.Alloc(512);
  Block& b = run.Alloc(512);
  run.Expect(run.record().addr(a.buf) != run.record().addr(b.buf), "two buffers after a refused size share an address");
}

// More than any one allocation can have: RESOURCE_EXHAUSTED where it is refused, and nothing is lost by asking.
void Exhausted(Run& run) {
  const std::size_t most = run.traits().max_alloc_bytes;
  const std::size_t n = most < kMax / 2 ? most + 1 : kMax / 4;
  absl::StatusOr<AnyBuf> buf = run.record().alloc(n, {});
  if (buf.ok()) {
    run.Expect(n != most + 1, "alloc of ", n, " bytes succeeded, but traits.max_alloc_bytes is ", most);
    run.ExpectOk(run.record().free(*buf, n, {}), absl::StrCat("free of ", n, " bytes"));
  } else {
    run.ExpectCode(buf.status(), absl::StatusCode::kResourceExhausted, absl::StrCat("alloc of ", n, " bytes"));
  }
  Block& small = run.Alloc(64);
  run.Fill(small.buf, 64, 7);
  run.Holds(small.buf, 64, 7, "a buffer after an alloc that was too large");
}

void ExhaustionIsOneCode(Run& run) {
  run.Fill(run.Alloc(64).buf, 64, 1);
  run.options().exhaust_in_next_alloc();
  absl::StatusOr<AnyBuf> buf = run.record().alloc(12345, {});
  run.options().stop_exhausting();
  if (buf.ok()) (void)run.record().free(*buf, 12345, {});
  run.ExpectCode(buf.status(), absl::StatusCode::kResourceExhausted, "alloc when the device's memory ran out");
  Block& after = run.Alloc(12345);
  run.Fill(after.buf, 12345, 8);
  run.Holds(after.buf, 12345, 8, "a buffer after memory had run out");
}

void ExceptionsPass(Run& run) {
  const std::size_t live = run.options().live_blocks ? run.options().live_blocks() : 0;
  run.options().throw_in_next_alloc();
  bool thrown = false;
  try {
    absl::StatusOr<AnyBuf> buf = run.record().alloc(54321, {});
    if (buf.ok()) (void)run.record().free(*buf, 54321, {});
  } catch (const std::exception&) {
    thrown = true;
  }
  run.Expect(thrown, "what the device's alloc threw did not come out of alloc");
  if (run.options().live_blocks) {
    run.Expect(run.options().live_blocks() == live, "an alloc that threw left a block behind");
  }
  // A lock left held would hang here.
  run.OnThreads(1, [&](std::size_t) {
    Block& after = run.Alloc(54321);
    run.Fill(after.buf, 54321, 9);
    run.Holds(after.buf, 54321, 9, "a buffer after an alloc that threw");
  });
}

// ---- free ----

void FreeEveryKind(Run& run) {
  const BufferSpec specs[] = {{},
                              {.uncached = true},
                              {.cpu_access = true},
                              {.host = true},
                              {.nolru = true},
                              {.zero = true},
                              {.alignment = 256},
                              {.host = true, .nolru = true, .zero = true, .alignment = 64}};
  for (const BufferSpec& spec : specs) {
    for (const std::size_t n : {std::size_t{1}, std::size_t{1000}, std::size_t{300} << 10}) {
      if (Block* block = run.AllocIfGranted(n, spec)) run.Free(*block);
    }
  }
}

// The bytes of freed buffers serve again: more than could be live at once, or than the device says it has.
void FreeReturnsMemory(Run& run) {
  const std::size_t before = run.options().live_blocks();
  for (int i = 0; i < 100; ++i) {
    Block& block = run.Alloc(1 << 16, {.nolru = true});
    run.Free(block);
  }
  const std::size_t after = run.options().live_blocks();
  run.Expect(after <= before, after - std::min(before, after), " device blocks are live after all buffers were freed");
}

// Nobody waits between issue and free: what is pending still takes effect, and on the right memory.
void FreePending(Run& run) {
  const std::size_t n = 70000;
  for (std::uint32_t i = 0; i < 8; ++i) {
    Block& a = run.Alloc(n);
    run.Fill(a.buf, n, i);
    Block* copy = nullptr;
    if (run.record().transfer) {
      copy = &run.Alloc(n);
      run.Transfer(copy->buf, a.buf, n);
    }
    run.Free(a);
    Block& next = run.Alloc(n);  // likely the same memory
    run.Fill(next.buf, n, i + 50);
    run.Holds(next.buf, n, i + 50, "a buffer that follows one freed with work pending");
    if (copy != nullptr) {
      run.Holds(copy->buf, n, i, "the destination of a transfer whose source was freed at once");
      run.Free(*copy);
    }
    run.Free(next);
  }
}

}  // namespace

const ClauseList& RecordClauses() {
  static const ClauseList& list = *new ClauseList{
      {"record.required_members", "alloc, free, copyin, copyout and addr are set", kNothing, RequiredMembers},
      {"record.traits", "name, min_alignment and max_alloc_bytes say something", kNothing, Traits},
      {"lifetime.copies_share_state", "a buffer of one copy of the record is every copy's", kBytes, CopiesShareState},
      {"lifetime.copy_keeps_state", "a copy keeps the state alive when the original is gone", kBytes, CopyKeepsState},
      {"lifetime.handle_is_a_value", "copying a handle copies no memory and owns nothing", kBytes, HandleIsAValue},
  };
  return list;
}

const ClauseList& AllocClauses() {
  static const ClauseList& list = *new ClauseList{
      {"alloc.usable_bytes", "all nbytes of a buffer hold what is written", kBytes, UsableBytes},
      {"alloc.distinct_memory", "live buffers share no byte", kBytes, DistinctMemory},
      {"alloc.default_alignment", "buffers are aligned to traits.min_alignment", kNothing, DefaultAlignment},
      {"alloc.alignment", "spec.alignment is honoured or INVALID_ARGUMENT", kBytes, Alignment},
      {"alloc.alignment_after_reuse", "freed memory does not serve a larger alignment", kNothing, AlignmentAfterReuse},
      {"alloc.bad_alignment", "an alignment that is no power of two is INVALID_ARGUMENT", kNothing, BadAlignment},
      {"alloc.zero_bytes", "buffers of 0 bytes work everywhere", kBytes, ZeroBytes},
      {"alloc.zero_bytes_no_driver_call", "operations on 0 bytes reach no driver", kDriverCalls,
       ZeroBytesReachNoDriver},
      {"alloc.too_large", "a size above PTRDIFF_MAX is INVALID_ARGUMENT", kNothing, TooLarge},
      {"alloc.exhausted", "more than max_alloc_bytes, or than there is, is RESOURCE_EXHAUSTED", kBytes, Exhausted},
      {"alloc.exhausted_device", "a device out of memory is RESOURCE_EXHAUSTED, and works again", kBytes | kExhaustHook,
       ExhaustionIsOneCode},
      {"alloc.exceptions_pass", "an exception passes through and leaves the record whole", kBytes | kThrowHook,
       ExceptionsPass},
      {"free.every_kind", "buffers of every granted spec are freed with the same spec", kNothing, FreeEveryKind},
      {"free.returns_memory", "what is freed does not stay live on the device", kLiveBlocks, FreeReturnsMemory},
      {"free.pending_work", "free and reuse are safe while earlier work is pending", kBytes, FreePending},
  };
  return list;
}

}  // namespace packalloc::testing
