// Clauses on addr, offset and host_ptr.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "lib/testing/run.h"

namespace packalloc::testing {
namespace {

// ---- addr ----

void AddressStable(Run& run) {
  Block& block = run.Alloc(100);
  const DeviceAddress address = run.record().addr(block.buf);
  run.Expect(address.value != 0, "the address of a buffer of 100 bytes is null");
  run.Alloc(100);
  if (run.record().copyin) run.ExpectOk(run.record().copyin(block.buf, Pattern(1, 100)), "copyin of 100 bytes");
  run.Expect(run.record().addr(block.buf) == address, "the address of a live buffer changed");
}

void AddressDistinct(Run& run) {
  std::vector<std::pair<DeviceAddress, std::size_t>> seen;
  for (std::size_t i = 0; i < 32; ++i) {
    const std::size_t n = 50 + i * 37;
    const DeviceAddress a = run.record().addr(run.Alloc(n).buf);
    for (const auto& [b, nbytes] : seen) {
      run.Expect(a != b, "two live buffers have the same address");
      if (!run.traits().address_is_pointer) continue;
      run.Expect(a.value + n <= b.value || b.value + nbytes <= a.value, "two live buffers overlap: ", n, " bytes at 0x",
                 absl::Hex(a.value), " and ", nbytes, " at 0x", absl::Hex(b.value));
    }
    seen.emplace_back(a, n);
  }
}

void AddressForm(Run& run) {
  Block& block = run.Alloc(100);
  std::vector<AnyBuf> bufs = {block.buf};
  if (run.record().offset) bufs.push_back(run.View(block.buf, 50, 13));
  for (const AnyBuf& buf : bufs) {
    const DeviceAddress address = run.record().addr(buf);
    if (run.traits().address_is_pointer) {
      run.Expect(address.byte_offset == 0, "a pointer has byte offset ", address.byte_offset,
                 " beside it, instead of folded in");
    }
  }
}

void ExpectFollows(Run& run, const DeviceAddress& base, const DeviceAddress& view, std::size_t distance) {
  const DeviceAddress wanted = run.traits().address_is_pointer ? DeviceAddress{base.value + distance, 0}
                                                               : DeviceAddress{base.value, base.byte_offset + distance};
  run.Expect(view == wanted, "the address of a view at ", distance, " is {0x", absl::Hex(view.value), ", ",
             view.byte_offset, "}, not {0x", absl::Hex(wanted.value), ", ", wanted.byte_offset, "}");
}

void AddressFollowsOffset(Run& run) {
  Block& block = run.Alloc(4096);
  const DeviceAddress base = run.record().addr(block.buf);
  for (const std::size_t at : {0u, 1u, 64u, 100u, 129u, 4000u}) {
    ExpectFollows(run, base, run.record().addr(run.View(block.buf, 96, at)), at);
  }
  const AnyBuf outer = run.View(block.buf, 1024, 256);
  ExpectFollows(run, base, run.record().addr(run.View(outer, 64, 128)), 384);
}

// ---- offset ----

void OffsetReads(Run& run) {
  Block& block = run.Alloc(4096);
  const Bytes bytes = Pattern(1, 4096);
  run.Write(block.buf, bytes);
  for (const std::size_t at : {0u, 1u, 3u, 64u, 100u, 128u, 129u, 1000u, 4095u}) {
    const std::size_t n = std::min<std::size_t>(777, 4096 - at);
    run.Holds(run.View(block.buf, n, at), absl::MakeConstSpan(bytes).subspan(at, n),
              absl::StrCat("a view at byte offset ", at));
  }
}

void OffsetWrites(Run& run) {
  Block& block = run.Alloc(4096);
  Bytes wanted = Pattern(2, 4096);
  run.Write(block.buf, wanted);
  for (const std::size_t at : {0u, 5u, 129u, 2048u, 3999u}) {
    const Bytes part = Pattern(static_cast<std::uint32_t>(at) + 3, 97);
    run.Write(run.View(block.buf, 97, at), part);
    std::copy(part.begin(), part.end(), wanted.begin() + static_cast<std::ptrdiff_t>(at));
    run.Holds(block.buf, wanted, absl::StrCat("the base after copyin to a view at byte offset ", at));
  }
}

void OffsetOfView(Run& run) {
  Block& block = run.Alloc(4096);
  const Bytes bytes = Pattern(3, 4096);
  run.Write(block.buf, bytes);
  const AnyBuf view = run.View(block.buf, 1024, 256);
  run.Holds(run.View(view, 64, 128), absl::MakeConstSpan(bytes).subspan(384, 64), "a view at 128 of a view at 256");
  const AnyBuf third = run.View(run.View(view, 512, 100), 8, 7);
  run.Holds(third, absl::MakeConstSpan(bytes).subspan(363, 8), "a view at 7 of a view at 100 of a view at 256");
}

void ExpectNoView(Run& run, const AnyBuf& buf, std::size_t nbytes, std::size_t at, std::size_t size) {
  run.ExpectCode(run.record().offset(buf, nbytes, at).status(), absl::StatusCode::kOutOfRange,
                 absl::StrCat("a view of ", nbytes, " bytes at byte offset ", at, " of ", size));
}

void OffsetBounds(Run& run) {
  Block& block = run.Alloc(64);
  ExpectNoView(run, block.buf, 8, 64, 64);
  ExpectNoView(run, block.buf, 65, 0, 64);
  ExpectNoView(run, block.buf, 1, 64, 64);
  ExpectNoView(run, block.buf, 0, 65, 64);
}

void OffsetBoundsWrap(Run& run) {
  Block& block = run.Alloc(64);
  ExpectNoView(run, block.buf, kMax - 4, 8, 64);
  ExpectNoView(run, block.buf, 2, kMax, 64);
  ExpectNoView(run, block.buf, kMax, 1, 64);
  ExpectNoView(run, block.buf, kMax / 2 + 1, kMax / 2 + 1, 64);
}

void OffsetBoundsOfView(Run& run) {
  Block& block = run.Alloc(4096);
  const AnyBuf view = run.View(block.buf, 1024, 256);
  ExpectNoView(run, view, 64, 1016, 1024);
  ExpectNoView(run, view, 1025, 0, 1024);
  run.ExpectOk(run.record().offset(view, 8, 1016).status(), "a view of the last 8 bytes of a view");
}

void OffsetEmpty(Run& run) {
  Block& block = run.Alloc(64);
  for (const std::size_t at : {0u, 1u, 64u}) {
    const AnyBuf empty = run.View(block.buf, 0, at);
    run.ExpectOk(run.record().copyin(empty, {}), "copyin of 0 bytes to an empty view");
    run.ExpectOk(run.record().copyout({}, empty), "copyout of 0 bytes from an empty view");
  }
}

void OffsetCopyBounds(Run& run) {
  Block& block = run.Alloc(1000);
  run.Fill(block.buf, 1000, 4);
  const AnyBuf view = run.View(block.buf, 100, 200);
  run.ExpectCode(run.record().copyin(view, Pattern(5, 101)), absl::StatusCode::kOutOfRange,
                 "copyin of 101 bytes to a view of 100");
  Bytes dest(101);
  run.ExpectCode(run.record().copyout(absl::MakeSpan(dest), view), absl::StatusCode::kOutOfRange,
                 "copyout of 101 bytes from a view of 100");
  run.Holds(block.buf, 1000, 4, "the base after refused copies to a view");
}

// Views come and go without a free, and nothing is left of them.
void OffsetOwnsNothing(Run& run) {
  const std::size_t before = run.options().live_blocks();
  Block& block = run.Alloc(4096, {.nolru = true});
  run.Fill(block.buf, 4096, 6);
  for (std::size_t i = 0; i < 500; ++i) run.View(block.buf, 64, i);
  const std::size_t with_views = run.options().live_blocks();
  run.Expect(with_views <= before + 1, "500 views of one buffer made ", with_views - std::min(with_views, before + 1),
             " device blocks");
  run.Holds(block.buf, 4096, 6, "the base after its views are gone");
  run.Free(block);
  run.Expect(run.options().live_blocks() <= before, "a device block is live after views and base are gone");
}

// ---- host_ptr ----

// Where the CPU finds the buffer once all is done.
std::byte* HostPtr(Run& run, const AnyBuf& buf) {
  const absl::StatusOr<std::byte*> at = run.record().host_ptr(buf);
  run.RequireOk(at.status(), "host_ptr");
  run.Require(*at != nullptr, "host_ptr is null");
  return *at;
}

void HostReads(Run& run) {
  Block& block = run.AllocHost(5000);
  const std::byte* at = HostPtr(run, block.buf);
  for (std::uint32_t seed : {1u, 2u, 3u}) {
    run.Fill(block.buf, 5000, seed);
    run.Synchronize();
    run.Same({at, 5000}, Pattern(seed, 5000), "host_ptr after copyin and synchronize");
  }
  if (!run.record().transfer) return;
  Block& other = run.Alloc(5000);
  run.Fill(other.buf, 5000, 4);
  run.Transfer(block.buf, other.buf, 5000);
  run.Synchronize();
  run.Same({at, 5000}, Pattern(4, 5000), "host_ptr after transfer and synchronize");
}

void HostWrites(Run& run) {
  Block& block = run.AllocHost(5000);
  run.Synchronize();
  const Bytes bytes = Pattern(5, 5000);
  std::memcpy(HostPtr(run, block.buf), bytes.data(), bytes.size());
  run.Holds(block.buf, bytes, "a buffer written through host_ptr");
}

void HostOwnMemory(Run& run) {
  Block& a = run.AllocHost(1000);
  Block& b = run.AllocHost(1000);
  std::byte* at_a = HostPtr(run, a.buf);
  std::byte* at_b = HostPtr(run, b.buf);
  run.Require(at_a + 1000 <= at_b || at_b + 1000 <= at_a, "the host_ptrs of two live buffers overlap");
  run.Expect(HostPtr(run, a.buf) == at_a, "host_ptr of a live buffer changed");
  run.Fill(a.buf, 1000, 6);
  run.Fill(b.buf, 1000, 7);
  run.Synchronize();
  run.Same({at_a, 1000}, Pattern(6, 1000), "host_ptr of the first of two buffers");
  run.Same({at_b, 1000}, Pattern(7, 1000), "host_ptr of the second of two buffers");
}

void HostFollowsOffset(Run& run) {
  Block& block = run.AllocHost(1000);
  std::byte* base = HostPtr(run, block.buf);
  const AnyBuf view = run.View(block.buf, 500, 123);
  run.Expect(HostPtr(run, view) == base + 123, "host_ptr of a view at 123 is not 123 bytes into the buffer");
  run.Expect(HostPtr(run, run.View(view, 10, 77)) == base + 200, "host_ptr of a view at 77 of a view at 123");
}

// A buffer that has none says so; one that has one means its own bytes.
void HostOfEveryKind(Run& run) {
  for (const BufferSpec& spec :
       {BufferSpec{}, BufferSpec{.host = true}, BufferSpec{.cpu_access = true}, BufferSpec{.uncached = true}}) {
    Block* block = run.AllocIfGranted(3000, spec);
    if (block == nullptr) continue;
    const absl::StatusOr<std::byte*> at = run.record().host_ptr(block->buf);
    if (!at.ok()) {
      run.ExpectCode(at.status(), absl::StatusCode::kFailedPrecondition,
                     absl::StrCat("host_ptr of a buffer with ", ToString(spec), " that is not host memory"));
      continue;
    }
    run.Fill(block->buf, 3000, 8);
    run.Synchronize();
    run.Same({*at, 3000}, Pattern(8, 3000), absl::StrCat("host_ptr of a buffer with ", ToString(spec)));
  }
}

}  // namespace

const ClauseList& AddressClauses() {
  static const ClauseList& list = *new ClauseList{
      {"addr.stable", "a live buffer keeps its address, which is not null", kNothing, AddressStable},
      {"addr.distinct", "live buffers have addresses of their own", kNothing, AddressDistinct},
      {"addr.form", "a pointer has its offset folded in", kNothing, AddressForm},
      {"addr.follows_offset", "a view's address is its base's, moved by the offset", kOffset, AddressFollowsOffset},
  };
  return list;
}

const ClauseList& OffsetClauses() {
  static const ClauseList& list = *new ClauseList{
      {"offset.reads_base", "a view reads its part of the base, at any byte offset", kBytes | kOffset, OffsetReads},
      {"offset.writes_base", "a view writes its part of the base and no more", kBytes | kOffset, OffsetWrites},
      {"offset.of_view", "a view of a view is relative to that view", kBytes | kOffset, OffsetOfView},
      {"offset.bounds", "a view beyond the buffer is OUT_OF_RANGE", kOffset | kRanges, OffsetBounds},
      {"offset.bounds_wrap", "so where offset and size wrap around", kOffset | kRanges, OffsetBoundsWrap},
      {"offset.bounds_of_view", "so of a view, though inside its base", kOffset | kRanges, OffsetBoundsOfView},
      {"offset.empty", "an empty view is one, at the end too", kOffset, OffsetEmpty},
      {"offset.copy_bounds", "copies beyond a view are OUT_OF_RANGE, though inside its base",
       kBytes | kOffset | kRanges, OffsetCopyBounds},
      {"offset.owns_nothing", "views leave nothing behind and are not freed", kBytes | kOffset | kLiveBlocks,
       OffsetOwnsNothing},
  };
  return list;
}

const ClauseList& HostPtrClauses() {
  static const ClauseList& list = *new ClauseList{
      {"host_ptr.reads", "the CPU reads at host_ptr what was copied in, after synchronize", kBytes | kHostPtr,
       HostReads},
      {"host_ptr.writes", "what the CPU writes at host_ptr is in the buffer", kBytes | kHostPtr, HostWrites},
      {"host_ptr.own_memory", "each buffer has a host_ptr of its own", kBytes | kHostPtr, HostOwnMemory},
      {"host_ptr.follows_offset", "a view's host_ptr is its base's, moved by the offset", kHostPtr | kOffset,
       HostFollowsOffset},
      {"host_ptr.every_kind", "host_ptr means this very buffer, or is FAILED_PRECONDITION", kBytes | kHostPtr,
       HostOfEveryKind},
  };
  return list;
}

}  // namespace packalloc::testing
