// Clauses on the fields of BufferSpec, on memory_info and on synchronize.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "lib/testing/run.h"

namespace packalloc::testing {
namespace {

void ExpectZero(Run& run, Block& block) {
  run.Holds(block.buf, Bytes(block.nbytes), absl::StrCat("a buffer of ", block.nbytes, " bytes with zero"));
}

void Zero(Run& run) {
  for (const std::size_t n :
       {std::size_t{1}, std::size_t{100}, std::size_t{4096}, std::size_t{70001}, std::size_t{3} << 20}) {
    // Dirty memory first, which may well be what the next request gets.
    Block& dirty = run.Alloc(n);
    run.Fill(dirty.buf, n, 1);
    run.Free(dirty);
    Block* block = run.AllocIfGranted(n, {.zero = true});
    if (block == nullptr) continue;
    ExpectZero(run, *block);
    run.Fill(block->buf, n, 2);
    run.Free(*block);
    if (Block* again = run.AllocIfGranted(n, {.zero = true})) ExpectZero(run, *again);
  }
}

void ZeroOfEveryKind(Run& run) {
  for (const BufferSpec& spec :
       {BufferSpec{.host = true, .zero = true}, BufferSpec{.cpu_access = true, .zero = true},
        BufferSpec{.nolru = true, .zero = true}, BufferSpec{.zero = true, .alignment = 4096}}) {
    if (Block* block = run.AllocIfGranted(5000, spec)) ExpectZero(run, *block);
  }
}

// zero is ordered like any other operation: a copy issued afterwards is not overwritten by it.
void ZeroOrdered(Run& run) {
  Block* block = run.AllocIfGranted(50000, {.zero = true});
  if (block == nullptr) return;
  run.Fill(block->buf, 20000, 3);
  Bytes wanted = Pattern(3, 50000);
  std::fill(wanted.begin() + 20000, wanted.end(), std::byte{0});
  run.Holds(block->buf, wanted, "a zeroed buffer after copyin of 20000 bytes");
}

void Works(Run& run, const BufferSpec& spec, bool wants_host_ptr) {
  for (const std::size_t n : {std::size_t{1}, std::size_t{5000}, std::size_t{1} << 20}) {
    Block* block = run.AllocIfGranted(n, spec);
    if (block == nullptr) return;
    run.Fill(block->buf, n, 4);
    run.Holds(block->buf, n, 4, absl::StrCat("a buffer with ", ToString(spec)));
    if (wants_host_ptr && run.record().host_ptr) {
      const absl::StatusOr<std::byte*> at = run.record().host_ptr(block->buf);
      run.RequireOk(at.status(), absl::StrCat("host_ptr of a buffer with ", ToString(spec)));
      run.Synchronize();
      run.Same({*at, n}, Pattern(4, n), absl::StrCat("host_ptr of a buffer with ", ToString(spec)));
    }
    run.Free(*block);
  }
}

void Host(Run& run) { Works(run, {.host = true}, true); }
void CpuAccess(Run& run) { Works(run, {.cpu_access = true}, true); }
void Uncached(Run& run) { Works(run, {.uncached = true}, false); }
void Nolru(Run& run) { Works(run, {.nolru = true}, false); }

void NolruIsNotKept(Run& run) {
  const std::size_t before = run.options().live_blocks();
  Block* block = run.AllocIfGranted(4096, {.nolru = true});
  if (block == nullptr) return;
  run.Free(*block);
  run.Expect(run.options().live_blocks() <= before, "a buffer with nolru is still live on the device after free");
}

// ---- external_ptr ----

constexpr std::size_t kExternal = 4096;

BufferSpec Wrapping(const void* at) { return {.external_ptr = reinterpret_cast<std::uintptr_t>(at)}; }

Block& Wrap(Run& run, Bytes& memory) {
  Block* block = run.AllocIfGranted(memory.size(), Wrapping(memory.data()));
  if (block == nullptr) throw NotApplicable{"the record does not wrap host memory as external_ptr"};
  return *block;
}

void ExternalIsTheMemory(Run& run) {
  Bytes memory = Pattern(1, kExternal);
  Block& block = Wrap(run, memory);
  run.Holds(block.buf, kExternal, 1, "a buffer over external memory");
  run.Fill(block.buf, 100, 2);
  run.Synchronize();
  run.Same(absl::MakeConstSpan(memory).first(100), Pattern(2, 100), "external memory after copyin and synchronize");
  run.Same(absl::MakeConstSpan(memory).subspan(100), absl::MakeConstSpan(Pattern(1, kExternal)).subspan(100),
           "external memory beyond a copyin");
  if (run.record().host_ptr) {
    const absl::StatusOr<std::byte*> at = run.record().host_ptr(block.buf);
    run.Expect(at.ok() && *at == memory.data(), "host_ptr of external memory is not the memory itself");
  }
  run.Free(block);
}

void ExternalIsNotFreed(Run& run) {
  std::array<Bytes, 3> memories;  // all kept to the end: a backend that is wrong may still write to the first
  for (Bytes& memory : memories) {
    memory = Pattern(3, kExternal);
    Block& block = Wrap(run, memory);
    run.Fill(block.buf, kExternal, 4);
    // No synchronize: once free returns, the memory is its owner's alone.
    run.Free(block);
    run.Same(memory, Pattern(4, kExternal), "external memory after free");
    std::fill(memory.begin(), memory.end(), std::byte{0x11});
    Block& plain = run.Alloc(kExternal);
    run.Fill(plain.buf, kExternal, 5);
    run.Holds(plain.buf, kExternal, 5, "a plain buffer after one over external memory");
    run.Synchronize();
    run.Same(memory, Bytes(kExternal, std::byte{0x11}), "external memory after a plain alloc of the same size");
    run.Free(plain);
  }
}

void ExternalIsNotCached(Run& run) {
  Bytes first = Pattern(6, kExternal);
  run.Free(Wrap(run, first));
  Bytes second = Pattern(7, kExternal);
  Block& block = Wrap(run, second);
  run.Holds(block.buf, kExternal, 7, "a buffer over other external memory of the same size");
  run.Free(block);
}

void ExternalBad(Run& run) {
  absl::StatusOr<AnyBuf> null = run.record().alloc(64, {.external_ptr = 0});
  if (null.ok()) (void)run.record().free(*null, 64, {.external_ptr = 0});
  run.ExpectCode(null.status(), absl::StatusCode::kInvalidArgument, "alloc with a null external_ptr");
}

// Contradictions are honoured in full or refused.
void ExternalWithOtherFields(Run& run) {
  alignas(64) static thread_local std::byte storage[256];
  std::memset(storage, 0x77, sizeof storage);
  const BufferSpec misaligned{.alignment = 64, .external_ptr = reinterpret_cast<std::uintptr_t>(storage + 1)};
  if (Block* block = run.AllocIfGranted(64, misaligned)) {
    run.Fail("external_ptr one byte off an alignment of 64 was granted");
    run.Free(*block);
  }
  const BufferSpec zeroed{.zero = true, .external_ptr = reinterpret_cast<std::uintptr_t>(storage)};
  if (Block* block = run.AllocIfGranted(64, zeroed)) {
    run.Holds(block->buf, Bytes(64), "external memory with zero");
    run.Free(*block);
  }
}

// ---- memory_info, synchronize ----

void MemorySane(Run& run) {
  for (int i = 0; i < 3; ++i) {
    const absl::StatusOr<MemoryInfo> info = run.record().memory_info();
    run.RequireOk(info.status(), "memory_info");
    run.Expect(info->total_bytes > 0, "memory_info.total_bytes is 0");
    run.Expect(info->free_bytes <= info->total_bytes, "memory_info: ", info->free_bytes, " bytes free of ",
               info->total_bytes);
    run.Alloc(1 << 20);
  }
}

void SynchronizeAnyTime(Run& run) {
  for (int i = 0; i < 3; ++i) run.Synchronize();
  Block& block = run.Alloc(50000);
  run.Fill(block.buf, 50000, 1);
  run.Synchronize();
  run.Synchronize();
  run.Holds(block.buf, 50000, 1, "a buffer after two synchronizes");
  run.Fill(block.buf, 50000, 2);
  run.Free(block);
  run.Synchronize();
}

}  // namespace

const ClauseList& SpecClauses() {
  static const ClauseList& list = *new ClauseList{
      {"spec.zero", "zero gives zero bytes, also on memory used before", kBytes, Zero},
      {"spec.zero_every_kind", "so together with the other fields", kBytes, ZeroOfEveryKind},
      {"spec.zero_ordered", "zeroing comes before every copy to the buffer", kBytes, ZeroOrdered},
      {"spec.host", "host is memory that the CPU reaches, or INVALID_ARGUMENT", kBytes, Host},
      {"spec.cpu_access", "so cpu_access", kBytes, CpuAccess},
      {"spec.uncached", "uncached works, or is INVALID_ARGUMENT", kBytes, Uncached},
      {"spec.nolru", "so nolru", kBytes, Nolru},
      {"spec.nolru_not_kept", "a buffer with nolru is gone from the device on free", kLiveBlocks, NolruIsNotKept},
      {"spec.external_ptr", "a buffer over external memory is that memory", kBytes, ExternalIsTheMemory},
      {"spec.external_ptr_not_freed", "free leaves external memory to its owner, all work done", kBytes,
       ExternalIsNotFreed},
      {"spec.external_ptr_not_cached", "each wrap is of the memory given", kBytes, ExternalIsNotCached},
      {"spec.external_ptr_null", "a null external_ptr is INVALID_ARGUMENT", kNothing, ExternalBad},
      {"spec.external_ptr_other_fields", "alignment and zero with it are kept or INVALID_ARGUMENT", kBytes,
       ExternalWithOtherFields},
      {"memory_info.sane", "free bytes are at most the total, which is not 0", kMemoryInfo, MemorySane},
      {"synchronize.any_time", "synchronize works with and without pending work, twice, after free", kBytes,
       SynchronizeAnyTime},
  };
  return list;
}

}  // namespace packalloc::testing
