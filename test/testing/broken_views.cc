// Faults of addr, offset and host_ptr.
#include <algorithm>
#include <array>
#include <cstdint>
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
using View = absl::StatusOr<MockBuf>;

// Replaces offset by one with a check of its own; the mock then takes the handle as it is.
void CheckViews(Record& r, bool (*fits)(std::size_t n, std::size_t at, std::size_t size)) {
  r.offset = [fits](const MockBuf& buf, std::size_t n, std::size_t at) -> View {
    if (!fits(n, at, buf.nbytes)) return absl::OutOfRangeError("a view beyond its buffer");
    return MockBuf{buf.block, buf.byte_offset + at, n};
  };
}

// The size of each root, for faults that look at it instead of the view's.
std::shared_ptr<std::map<std::uint64_t, std::size_t>> RootSizes(Record& r) {
  auto sizes = std::make_shared<std::map<std::uint64_t, std::size_t>>();
  r.alloc = [inner = r.alloc, sizes](std::size_t n, const BufferSpec& spec) {
    absl::StatusOr<MockBuf> buf = inner(n, spec);
    if (buf.ok()) (*sizes)[buf->block] = n;
    return buf;
  };
  return sizes;
}

}  // namespace

const std::vector<BrokenBackend>& BrokenViews() {
  static const auto& list = *new std::vector<BrokenBackend>{
      {"addr.stable", "gives another address each time",
       [](Record& r) {
         r.addr = [inner = r.addr, calls = std::make_shared<std::size_t>(0)](const MockBuf& buf) {
           DeviceAddress address = inner(buf);
           address.value += 64 * ++*calls;
           return address;
         };
       }},
      {"addr.stable", "has no address for a buffer",
       [](Record& r) { r.addr = [](const MockBuf&) { return DeviceAddress{}; }; }},
      {"addr.distinct", "gives the address of the page",
       [](Record& r) {
         r.addr = [inner = r.addr](const MockBuf& buf) { return DeviceAddress{inner(buf).value / 4096 * 4096, 0}; };
       }},
      {"addr.form", "has a pointer, and a byte offset beside it",
       [](Record& r) {
         r.addr = [inner = r.addr](const MockBuf& buf) { return DeviceAddress{inner(buf).value, buf.byte_offset}; };
       }},
      {"addr.follows_offset", "gives the base's address for a view",
       [](Record& r) { r.addr = [inner = r.addr](const MockBuf& buf) {
                         return inner({buf.block, 0, buf.nbytes});
                       }; }},
      {"addr.follows_offset",
       "adds the offset to an opaque handle",
       [](Record& r) {
         r.addr = [inner = r.addr](const MockBuf& buf) {
           const DeviceAddress address = inner(buf);
           return DeviceAddress{address.value + address.byte_offset, 0};
         };
       },
       {.address_is_pointer = false}},
      {"offset.reads_base", "rounds the byte offset down to the device's alignment",
       [](Record& r) {
         r.offset = [inner = r.offset](const MockBuf& buf, std::size_t n, std::size_t at) {
           return inner(buf, n, at / 128 * 128);
         };
       }},
      {"offset.reads_base", "refuses a misaligned sub-buffer, as a driver does",
       [](Record& r) {
         r.offset = [inner = r.offset](const MockBuf& buf, std::size_t n, std::size_t at) -> View {
           if (at % 128 != 0) return absl::InvalidArgumentError("misaligned sub-buffer offset");
           return inner(buf, n, at);
         };
       }},
      {"offset.writes_base", "writes one byte past a view",
       [](Record& r) {
         r.copyin = [inner = r.copyin](const MockBuf& dest, absl::Span<const std::byte> src) {
           std::vector<std::byte> more(src.begin(), src.end());
           if (dest.nbytes == 97 && src.size() == 97) more.push_back(std::byte{0});
           return inner({dest.block, dest.byte_offset, std::max(dest.nbytes, more.size())}, more);
         };
       }},
      {"offset.writes_base", "writes a view's bytes to the start of its base",
       [](Record& r) {
         r.copyin = [inner = r.copyin](const MockBuf& dest, absl::Span<const std::byte> src) {
           return inner({dest.block, 0, dest.nbytes}, src);
         };
       }},
      {"offset.of_view", "takes the offset from the root",
       [](Record& r) {
         r.offset = [inner = r.offset](const MockBuf& buf, std::size_t n, std::size_t at) {
           return inner({buf.block, 0, buf.byte_offset + buf.nbytes}, n, at);
         };
       }},
      {"offset.bounds", "is off by one in its check",
       [](Record& r) {
         CheckViews(r,
                    [](std::size_t n, std::size_t at, std::size_t size) { return at <= size && n <= size - at + 1; });
       }},
      {"offset.bounds", "says INVALID_ARGUMENT",
       [](Record& r) {
         r.offset = [inner = r.offset](const MockBuf& buf, std::size_t n, std::size_t at) -> View {
           View view = inner(buf, n, at);
           if (!view.ok()) return absl::InvalidArgumentError("a view beyond its buffer");
           return view;
         };
       }},
      {"offset.bounds_wrap", "adds offset and size, which wraps",
       [](Record& r) {
         CheckViews(r, [](std::size_t n, std::size_t at, std::size_t size) { return at + n <= size; });
       }},
      {"offset.bounds_of_view", "checks against the root's size",
       [](Record& r) {
         auto sizes = RootSizes(r);
         r.offset = [sizes](const MockBuf& buf, std::size_t n, std::size_t at) -> View {
           if (at + n > sizes->at(buf.block) - buf.byte_offset) return absl::OutOfRangeError("beyond the root");
           return MockBuf{buf.block, buf.byte_offset + at, n};
         };
       }},
      {"offset.empty", "refuses an empty view",
       [](Record& r) {
         r.offset = [inner = r.offset](const MockBuf& buf, std::size_t n, std::size_t at) -> View {
           if (n == 0) return absl::InvalidArgumentError("a view of 0 bytes");
           return inner(buf, n, at);
         };
       }},
      {"offset.empty", "refuses an empty view at the end",
       [](Record& r) {
         CheckViews(r, [](std::size_t n, std::size_t at, std::size_t size) { return at < size && n <= size - at; });
       }},
      {"offset.copy_bounds", "checks copies against the root's size",
       [](Record& r) {
         auto sizes = RootSizes(r);
         r.copyin = [inner = r.copyin, sizes](const MockBuf& dest, absl::Span<const std::byte> src) {
           return inner({dest.block, dest.byte_offset, sizes->at(dest.block) - dest.byte_offset}, src);
         };
       }},
      {"offset.owns_nothing", "allocates something for each view, which nobody frees",
       [](Record& r) {
         r.offset = [inner = r.offset, alloc = r.alloc](const MockBuf& buf, std::size_t n, std::size_t at) {
           (void)alloc(8, {});
           return inner(buf, n, at);
         };
       }},
      {"host_ptr.reads",
       "has a synchronize that does not wait",
       [](Record& r) { r.synchronize = [] { return absl::OkStatus(); }; },
       {.lazy = true}},
      {"host_ptr.writes", "gives a copy of the buffer",
       [](Record& r) {
         auto copies = std::make_shared<std::map<std::uint64_t, std::vector<std::byte>>>();
         r.host_ptr = [out = r.copyout, copies](const MockBuf& buf) -> absl::StatusOr<std::byte*> {
           std::vector<std::byte>& copy = (*copies)[buf.block];
           copy.resize(buf.nbytes);
           (void)out(absl::MakeSpan(copy), buf);
           return copy.data();
         };
       }},
      {"host_ptr.own_memory", "gives every buffer the same mapping",
       [](Record& r) {
         r.host_ptr = [](const MockBuf&) -> absl::StatusOr<std::byte*> {
           static std::array<std::byte, 8192> mapping;
           return mapping.data();
         };
       }},
      {"host_ptr.follows_offset", "gives the base's place for a view",
       [](Record& r) {
         r.host_ptr = [inner = r.host_ptr](const MockBuf& buf) { return inner({buf.block, 0, buf.nbytes}); };
       }},
      {"host_ptr.every_kind",
       "gives device memory some pointer",
       [](Record& r) {
         r.host_ptr = [inner = r.host_ptr](const MockBuf& buf) -> absl::StatusOr<std::byte*> {
           static std::array<std::byte, 8192> nowhere;
           absl::StatusOr<std::byte*> at = inner(buf);
           return at.ok() ? *at : nowhere.data();
         };
       },
       {.host_accessible = false}},
      {"host_ptr.every_kind",
       "says INTERNAL for device memory",
       [](Record& r) {
         r.host_ptr = [inner = r.host_ptr](const MockBuf& buf) -> absl::StatusOr<std::byte*> {
           absl::StatusOr<std::byte*> at = inner(buf);
           if (!at.ok()) return absl::InternalError("invalid value");
           return at;
         };
       },
       {.host_accessible = false}},
  };
  return list;
}

}  // namespace packalloc::testing
