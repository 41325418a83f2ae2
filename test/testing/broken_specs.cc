// Faults in what becomes of the fields of a BufferSpec.
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "test/testing/broken_backends.h"

namespace packalloc::testing {
namespace {

using Record = Allocator<MockBuf>;
using Result = absl::StatusOr<MockBuf>;

// The inner record gets another spec than the one asked for.
void ChangeSpec(Record& r, void (*change)(BufferSpec&)) {
  r.alloc = [inner = r.alloc, change](std::size_t n, BufferSpec spec) {
    change(spec);
    return inner(n, spec);
  };
  r.free = [inner = r.free, change](const MockBuf& buf, std::size_t n, BufferSpec spec) {
    change(spec);
    return inner(buf, n, spec);
  };
}

// Specs for which `refused` holds are answered with UNIMPLEMENTED.
void Refuse(Record& r, bool (*refused)(const BufferSpec&)) {
  r.alloc = [inner = r.alloc, refused](std::size_t n, const BufferSpec& spec) -> Result {
    if (refused(spec)) return absl::UnimplementedError("no such memory");
    return inner(n, spec);
  };
}

// Keeps what is freed and serves it for the same size where `kept` holds.
void Cache(Record& r, bool (*kept)(const BufferSpec&)) {
  auto cache = std::make_shared<std::multimap<std::size_t, MockBuf>>();
  r.alloc = [inner = r.alloc, cache, kept](std::size_t n, const BufferSpec& spec) -> Result {
    const auto found = cache->find(n);
    if (!kept(spec) || found == cache->end()) return inner(n, spec);
    const MockBuf buf = found->second;
    cache->erase(found);
    return buf;
  };
  r.free = [inner = r.free, cache, kept](const MockBuf& buf, std::size_t n, const BufferSpec& spec) {
    if (!kept(spec)) return inner(buf, n, spec);
    cache->emplace(n, buf);
    return absl::OkStatus();
  };
}

}  // namespace

const std::vector<BrokenBackend>& BrokenSpecs() {
  static const auto& list = *new std::vector<BrokenBackend>{
      {"spec.zero", "ignores zero", [](Record& r) { ChangeSpec(r, [](BufferSpec& s) { s.zero = false; }); }},
      {"spec.zero", "zeroes all but the last byte of an odd number",
       [](Record& r) {
         r.alloc = [inner = r.alloc, in = r.copyin](std::size_t n, const BufferSpec& spec) {
           Result buf = inner(n, spec);
           if (buf.ok() && spec.zero && n % 2 == 1) {
             const std::byte rest{0xCB};
             (void)in({buf->block, n - 1, 1}, absl::MakeConstSpan(&rest, 1));
           }
           return buf;
         };
       }},
      {"spec.zero", "a cache serves used memory as zeroed",
       [](Record& r) { Cache(r, [](const BufferSpec& s) { return !s.external_ptr; }); }},
      {"spec.zero_every_kind", "does not zero pinned memory",
       [](Record& r) { ChangeSpec(r, [](BufferSpec& s) { s.zero = s.zero && !s.host; }); }},
      {"spec.zero_ordered", "zeroes when the first read comes",
       [](Record& r) {
         auto late = std::make_shared<std::map<std::uint64_t, MockBuf>>();
         r.alloc = [inner = r.alloc, late](std::size_t n, const BufferSpec& spec) {
           Result buf = inner(n, spec);
           if (buf.ok() && spec.zero) late->emplace(buf->block, *buf);
           return buf;
         };
         r.copyout = [inner = r.copyout, in = r.copyin, late](absl::Span<std::byte> dest, const MockBuf& src) {
           if (const auto found = late->find(src.block); found != late->end()) {
             (void)in(found->second, std::vector<std::byte>(found->second.nbytes));
             late->erase(found);
           }
           return inner(dest, src);
         };
       }},
      {"spec.host",
       "ignores host",
       [](Record& r) { ChangeSpec(r, [](BufferSpec& s) { s.host = false; }); },
       {.host_accessible = false}},
      {"spec.host", "has no host memory, and says so by another code",
       [](Record& r) { Refuse(r, [](const BufferSpec& s) { return s.host; }); }},
      {"spec.cpu_access",
       "ignores cpu_access",
       [](Record& r) { ChangeSpec(r, [](BufferSpec& s) { s.cpu_access = false; }); },
       {.host_accessible = false}},
      {"spec.uncached", "has no uncached memory, and says so by another code",
       [](Record& r) { Refuse(r, [](const BufferSpec& s) { return s.uncached; }); }},
      {"spec.nolru", "does not know nolru, and says so by another code",
       [](Record& r) { Refuse(r, [](const BufferSpec& s) { return s.nolru; }); }},
      {"spec.nolru_not_kept", "a cache keeps buffers with nolru",
       [](Record& r) { Cache(r, [](const BufferSpec& s) { return !s.zero; }); }},
      {"spec.external_ptr", "ignores external_ptr and allocates",
       [](Record& r) { ChangeSpec(r, [](BufferSpec& s) { s.external_ptr.reset(); }); }},
      {"spec.external_ptr_not_freed", "gives external memory to the pool, which marks it as free",
       [](Record& r) {
         r.free = [inner = r.free](const MockBuf& buf, std::size_t n, const BufferSpec& spec) {
           const absl::Status freed = inner(buf, n, spec);
           if (spec.external_ptr) std::memset(reinterpret_cast<void*>(*spec.external_ptr), 0xDD, n);
           return freed;
         };
       }},
      {"spec.external_ptr_not_freed", "a cache serves external memory to others",
       [](Record& r) { Cache(r, [](const BufferSpec& s) { return !s.nolru && !s.zero; }); }},
      {"spec.external_ptr_not_cached", "a cache whose key leaves out external_ptr",
       [](Record& r) { Cache(r, [](const BufferSpec& s) { return s.external_ptr.has_value(); }); }},
      {"spec.external_ptr_null", "takes null for unset",
       [](Record& r) {
         ChangeSpec(r, [](BufferSpec& s) {
           if (s.external_ptr == std::uintptr_t{0}) s.external_ptr.reset();
         });
       }},
      {"spec.external_ptr_other_fields", "does not look at the alignment of external memory",
       [](Record& r) {
         ChangeSpec(r, [](BufferSpec& s) {
           if (s.external_ptr) s.alignment = 0;
         });
       }},
      {"spec.external_ptr_other_fields", "does not zero external memory that is to be zero",
       [](Record& r) {
         ChangeSpec(r, [](BufferSpec& s) {
           if (s.external_ptr) s.zero = false;
         });
       }},
  };
  return list;
}

}  // namespace packalloc::testing
