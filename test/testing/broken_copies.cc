// Faults of copyin, copyout, transfer and copy_from_disk.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "test/testing/broken_backends.h"

namespace packalloc::testing {
namespace {

using Record = Allocator<MockBuf>;
using Bytes = std::vector<std::byte>;
using Works = std::vector<std::function<absl::Status()>>;

// Work that a copyout or a synchronize runs, in whatever order `works` then has.
std::shared_ptr<Works> Defer(
    Record& r, void (*reorder)(Works&) = [](Works&) {}) {
  auto works = std::make_shared<Works>();
  const auto run = [works, reorder] {
    Works now;
    now.swap(*works);
    reorder(now);
    for (const auto& work : now) (void)work();
  };
  r.copyout = [inner = r.copyout, run](absl::Span<std::byte> dest, const MockBuf& src) {
    run();
    return inner(dest, src);
  };
  r.synchronize = [inner = r.synchronize, run] {
    run();
    return inner();
  };
  return works;
}

using Transfer = decltype(Record::transfer);
// Replaces transfer by one that changes its arguments.
void Change(Record& r, void (*change)(MockBuf& dest, MockBuf& src, std::size_t& n)) {
  r.transfer = [inner = r.transfer, change](MockBuf dest, MockBuf src, std::size_t n) {
    change(dest, src, n);
    return inner(dest, src, n);
  };
}

}  // namespace

const std::vector<BrokenBackend>& BrokenCopies() {
  static const auto& list = *new std::vector<BrokenBackend>{
      {"copyin.consumes_source", "reads its source when the copy is carried out",
       [](Record& r) {
         auto works = Defer(r);
         r.copyin = [inner = r.copyin, works](const MockBuf& dest, absl::Span<const std::byte> src) {
           works->push_back([=] { return inner(dest, src); });
           return absl::OkStatus();
         };
       }},
      {"copyin.consumes_source", "reads the source of large copies late",
       [](Record& r) {
         auto works = Defer(r);
         r.copyin = [inner = r.copyin, works](const MockBuf& dest, absl::Span<const std::byte> src) {
           if (src.size() <= (1 << 20)) return inner(dest, src);
           works->push_back([=] { return inner(dest, src); });
           return absl::OkStatus();
         };
       }},
      {"copyin.consumes_source_in_flight", "reuses its one staging buffer while a copy from it is pending",
       [](Record& r) {
         auto works = Defer(r);
         auto staging = std::make_shared<Bytes>();
         r.copyin = [inner = r.copyin, works, staging](const MockBuf& dest, absl::Span<const std::byte> src) {
           staging->assign(src.begin(), src.end());
           works->push_back([=, n = src.size()] { return inner(dest, absl::MakeConstSpan(*staging).first(n)); });
           return absl::OkStatus();
         };
       }},
      {"copyin.exact", "rounds copies up to whole words",
       [](Record& r) {
         r.copyin = [inner = r.copyin](const MockBuf& dest, absl::Span<const std::byte> src) {
           Bytes padded(src.begin(), src.end());
           padded.resize(std::max(src.size(), std::min((src.size() + 7) / 8 * 8, dest.nbytes)));
           return inner(dest, padded);
         };
       }},
      {"copyin.exact", "copies one byte too few",
       [](Record& r) {
         r.copyin = [inner = r.copyin](const MockBuf& dest, absl::Span<const std::byte> src) {
           return inner(dest, src.size() > 4000 ? src.first(src.size() - 1) : src);
         };
       }},
      {"copyin.unaligned_source", "reads from the word before an unaligned source",
       [](Record& r) {
         r.copyin = [inner = r.copyin](const MockBuf& dest, absl::Span<const std::byte> src) {
           const std::size_t past = reinterpret_cast<std::uintptr_t>(src.data()) % 8;
           return inner(dest, absl::MakeConstSpan(src.data() - past, src.size()));
         };
       }},
      {"copyin.ordered", "carries copies out last first",
       [](Record& r) {
         auto works = Defer(r, [](Works& w) { std::reverse(w.begin(), w.end()); });
         r.copyin = [inner = r.copyin, works](const MockBuf& dest, absl::Span<const std::byte> src) {
           works->push_back([=, staged = Bytes(src.begin(), src.end())] { return inner(dest, staged); });
           return absl::OkStatus();
         };
       }},
      {"copyin.out_of_range", "copies what fits and says OK",
       [](Record& r) {
         r.copyin = [inner = r.copyin](const MockBuf& dest, absl::Span<const std::byte> src) {
           return inner(dest, src.first(std::min(src.size(), dest.nbytes)));
         };
       }},
      {"copyin.out_of_range", "copies what fits before it says no",
       [](Record& r) {
         r.copyin = [inner = r.copyin](const MockBuf& dest, absl::Span<const std::byte> src) -> absl::Status {
           const absl::Status copied = inner(dest, src.first(std::min(src.size(), dest.nbytes)));
           return src.size() > dest.nbytes ? absl::OutOfRangeError("too many bytes") : copied;
         };
       }},
      {"copyin.out_of_range", "answers with another code",
       [](Record& r) {
         r.copyin = [inner = r.copyin](const MockBuf& dest, absl::Span<const std::byte> src) -> absl::Status {
           return src.size() > dest.nbytes ? absl::InternalError("invalid value") : inner(dest, src);
         };
       }},
      {"copyout.complete", "returns when the first chunk is there",
       [](Record& r) {
         r.copyout = [inner = r.copyout](absl::Span<std::byte> dest, const MockBuf& src) {
           return inner(dest.first(std::min<std::size_t>(dest.size(), 1 << 20)), src);
         };
       }},
      {"copyout.exact", "ends with a zero byte behind its destination",
       [](Record& r) {
         r.copyout = [inner = r.copyout](absl::Span<std::byte> dest, const MockBuf& src) {
           dest.data()[dest.size()] = std::byte{0};
           return inner(dest, src);
         };
       }},
      {"copyout.exact", "leaves out the last byte of an odd number",
       [](Record& r) {
         r.copyout = [inner = r.copyout](absl::Span<std::byte> dest, const MockBuf& src) {
           return inner(dest.first(dest.size() / 2 * 2), src);
         };
       }},
      {"copyout.keeps_source", "clears what it has read",
       [](Record& r) {
         r.copyout = [inner = r.copyout, write = r.copyin](absl::Span<std::byte> dest, const MockBuf& src) {
           const absl::Status read = inner(dest, src);
           (void)write(src, Bytes(dest.size()));
           return read;
         };
       }},
      {"copyout.out_of_range", "fills what there is and says OK",
       [](Record& r) {
         r.copyout = [inner = r.copyout](absl::Span<std::byte> dest, const MockBuf& src) {
           return inner(dest.first(std::min(dest.size(), src.nbytes)), src);
         };
       }},
      {"transfer.exact", "is short by one byte",
       [](Record& r) { Change(r, [](MockBuf&, MockBuf&, std::size_t& n) { n = n > 1 ? n - 1 : n; }); }},
      {"transfer.exact", "always copies the whole source",
       [](Record& r) { Change(r, [](MockBuf&, MockBuf& src, std::size_t& n) { n = src.nbytes; }); }},
      {"transfer.large", "stops after 1 MiB",
       [](Record& r) { Change(r, [](MockBuf&, MockBuf&, std::size_t& n) { n = std::min<std::size_t>(n, 1 << 20); }); }},
      {"transfer.ordered", "is carried out after copies that were issued later",
       [](Record& r) {
         auto works = Defer(r);
         r.transfer = [inner = r.transfer, works](const MockBuf& dest, const MockBuf& src, std::size_t n) {
           works->push_back([=] { return inner(dest, src, n); });
           return absl::OkStatus();
         };
       }},
      {"transfer.self", "refuses overlap, as a driver does",
       [](Record& r) {
         r.transfer = [inner = r.transfer](const MockBuf& dest, const MockBuf& src, std::size_t n) -> absl::Status {
           if (dest.block == src.block) return absl::InvalidArgumentError("copy overlap");
           return inner(dest, src, n);
         };
       }},
      {"transfer.overlap", "is a memcpy in chunks",
       [](Record& r) {
         r.transfer = [out = r.copyout, in = r.copyin](const MockBuf& dest, const MockBuf& src, std::size_t n) {
           constexpr std::size_t kChunk = 512;
           Bytes chunk(kChunk);
           for (std::size_t at = 0; at < n; at += kChunk) {
             const std::size_t part = std::min(kChunk, n - at);
             (void)out(absl::MakeSpan(chunk).first(part), {src.block, src.byte_offset + at, part});
             (void)in({dest.block, dest.byte_offset + at, part}, absl::MakeConstSpan(chunk).first(part));
           }
           return absl::OkStatus();
         };
       }},
      {"transfer.views", "forgets the offset of its source",
       [](Record& r) { Change(r, [](MockBuf&, MockBuf& src, std::size_t&) { src.byte_offset = 0; }); }},
      {"transfer.kinds", "takes no host memory",
       [](Record& r) {
         auto host = std::make_shared<std::set<std::uint64_t>>();
         r.alloc = [inner = r.alloc, host](std::size_t n, const BufferSpec& spec) {
           absl::StatusOr<MockBuf> buf = inner(n, spec);
           if (buf.ok() && spec.host) host->insert(buf->block);
           return buf;
         };
         r.transfer = [inner = r.transfer, host](const MockBuf& dest, const MockBuf& src, std::size_t n) {
           if (host->count(dest.block) + host->count(src.block) > 0) return absl::InternalError("invalid value");
           return inner(dest, src, n);
         };
       }},
      {"transfer.out_of_range", "copies what fits and says OK",
       [](Record& r) {
         Change(r, [](MockBuf& dest, MockBuf& src, std::size_t& n) { n = std::min({n, dest.nbytes, src.nbytes}); });
       }},
      {"copy_from_disk.exact", "reads the whole extent",
       [](Record& r) {
         r.copy_from_disk = [inner = r.copy_from_disk](const MockBuf& dest, const DiskExtent& src, std::size_t) {
           return inner(dest, src, src.nbytes);
         };
       }},
      {"copy_from_disk.out_of_range", "reads what there is and says OK",
       [](Record& r) {
         r.copy_from_disk = [inner = r.copy_from_disk](const MockBuf& dest, const DiskExtent& src, std::size_t n) {
           return inner(dest, src, std::min<std::size_t>({n, src.nbytes, dest.nbytes}));
         };
       }},
  };
  return list;
}

}  // namespace packalloc::testing
