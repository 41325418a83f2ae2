// Faults of the record as a whole, of alloc, free, synchronize, and of threads.
#include <algorithm>
#include <bit>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "test/testing/broken_backends.h"

namespace packalloc::testing {
namespace {

using Record = Allocator<MockBuf>;
using Result = absl::StatusOr<MockBuf>;

// The size passed to the inner record is another than the one asked for.
void Resize(Record& r, std::size_t (*resize)(std::size_t)) {
  r.alloc = [inner = r.alloc, resize](std::size_t n, const BufferSpec& spec) { return inner(resize(n), spec); };
  r.free = [inner = r.free, resize](const MockBuf& buf, std::size_t n, const BufferSpec& spec) {
    return inner(buf, resize(n), spec);
  };
}

// A naive cache: keeps all that is freed and serves it by size alone.
void CacheBySize(Record& r) {
  auto kept = std::make_shared<std::multimap<std::size_t, MockBuf>>();
  r.alloc = [inner = r.alloc, kept](std::size_t n, const BufferSpec& spec) -> Result {
    const auto found = kept->find(n);
    if (found == kept->end()) return inner(n, spec);
    const MockBuf buf = found->second;
    kept->erase(found);
    return buf;
  };
  r.free = [kept](const MockBuf& buf, std::size_t n, const BufferSpec&) {
    if (n != 0) kept->emplace(n, buf);
    return absl::OkStatus();
  };
}

void AnswerOtherCode(Record& r, absl::Status (*answer)()) {
  r.alloc = [inner = r.alloc, answer](std::size_t n, const BufferSpec& spec) -> Result {
    Result buf = inner(n, spec);
    if (absl::IsResourceExhausted(buf.status())) return answer();
    return buf;
  };
}

// A record that works on one thread only, as one that relies on a current context.
template <typename... Args, typename R>
void BindToThread(std::function<R(Args...)>& member) {
  member = [inner = member, home = std::this_thread::get_id()](Args... args) -> R {
    if (std::this_thread::get_id() != home) return absl::FailedPreconditionError("no current context on this thread");
    return inner(args...);
  };
}

// A bump allocator whose mark is copied with the closure.
struct Bump {
  MockBuf arena;
  std::size_t used = 0;
  Result operator()(std::size_t n, const BufferSpec&) {
    const MockBuf buf{arena.block, used, n};
    used += (n + 63) / 64 * 64;
    return buf;
  }
};

// Works as long as the first copy of it lives.
struct StateOfTheFirst {
  std::function<Result(std::size_t, const BufferSpec&)> alloc;
  std::shared_ptr<int> state = std::make_shared<int>(0);
  std::weak_ptr<int> seen = state;
  explicit StateOfTheFirst(std::function<Result(std::size_t, const BufferSpec&)> a) : alloc(std::move(a)) {}
  StateOfTheFirst(const StateOfTheFirst& other) : alloc(other.alloc), state(nullptr), seen(other.seen) {}
  StateOfTheFirst(StateOfTheFirst&&) = default;
  StateOfTheFirst& operator=(const StateOfTheFirst&) = delete;
  StateOfTheFirst& operator=(StateOfTheFirst&&) = delete;
  ~StateOfTheFirst() = default;
  Result operator()(std::size_t n, const BufferSpec& spec) const {
    if (seen.expired()) return absl::InternalError("the record that owned the state is gone");
    return alloc(n, spec);
  }
};

}  // namespace

const std::vector<BrokenBackend>& BrokenAllocs() {
  static const auto& list = *new std::vector<BrokenBackend>{
      {"record.required_members", "has no addr", [](Record& r) { r.addr = nullptr; }},
      {"record.traits", "promises an alignment of 48", [](Record& r) { r.traits.min_alignment = 48; }},
      {"lifetime.copies_share_state", "each copy has a state of its own",
       [](Record& r) {
         r.alloc = Bump{*r.alloc(1 << 20, {})};
         r.free = [](const MockBuf&, std::size_t, const BufferSpec&) { return absl::OkStatus(); };
       }},
      {"lifetime.copy_keeps_state", "a copy works only while the original lives",
       [](Record& r) { r.alloc = StateOfTheFirst(r.alloc); }},
      {"lifetime.handle_is_a_value", "takes the handle's own place for the buffer's address",
       [](Record& r) {
         r.addr = [](const MockBuf& buf) { return DeviceAddress{reinterpret_cast<std::uintptr_t>(&buf), 0}; };
       }},
      {"alloc.usable_bytes", "rounds sizes down to 64",
       [](Record& r) { Resize(r, [](std::size_t n) { return n < 64 ? n : n / 64 * 64; }); }},
      {"alloc.distinct_memory", "serves a live buffer again",
       [](Record& r) {
         auto given = std::make_shared<std::map<std::size_t, MockBuf>>();
         r.alloc = [inner = r.alloc, given](std::size_t n, const BufferSpec& spec) -> Result {
           if (given->count(n) == 0) given->emplace(n, *inner(n, spec));
           return given->at(n);
         };
         r.free = [](const MockBuf&, std::size_t, const BufferSpec&) { return absl::OkStatus(); };
       }},
      {"alloc.default_alignment", "puts a header of 8 bytes before the buffer",
       [](Record& r) {
         r.alloc = [inner = r.alloc](std::size_t n, const BufferSpec& spec) -> Result {
           Result buf = inner(n + 8, spec);
           if (!buf.ok()) return buf;
           return MockBuf{buf->block, 8, n};
         };
         r.free = [inner = r.free](const MockBuf& buf, std::size_t n, const BufferSpec& spec) {
           return inner({buf.block, 0, n + 8}, n + 8, spec);
         };
       }},
      {"alloc.alignment", "ignores spec.alignment",
       [](Record& r) {
         r.alloc = [inner = r.alloc](std::size_t n, BufferSpec spec) {
           spec.alignment = 0;
           return inner(n, spec);
         };
         r.free = [inner = r.free](const MockBuf& buf, std::size_t n, BufferSpec spec) {
           spec.alignment = 0;
           return inner(buf, n, spec);
         };
       }},
      {"alloc.alignment_after_reuse", "a cache whose key leaves out the alignment", CacheBySize},
      {"alloc.bad_alignment", "rounds an alignment up to a power of two",
       [](Record& r) {
         r.alloc = [inner = r.alloc](std::size_t n, BufferSpec spec) {
           if (spec.alignment < kMaxAlignment) spec.alignment = std::bit_ceil(spec.alignment);
           return inner(n, spec);
         };
       }},
      {"alloc.zero_bytes", "refuses 0 bytes, as a driver does",
       [](Record& r) {
         r.alloc = [inner = r.alloc](std::size_t n, const BufferSpec& spec) -> Result {
           if (n == 0) return absl::InvalidArgumentError("invalid buffer size");
           return inner(n, spec);
         };
       }},
      {"alloc.zero_bytes_no_driver_call", "asks the driver for 1 byte instead of 0",
       [](Record& r) { Resize(r, [](std::size_t n) { return std::max<std::size_t>(n, 1); }); }},
      {"alloc.too_large", "rounds sizes up without looking for an overflow",
       [](Record& r) { Resize(r, [](std::size_t n) { return (n + 511) / 512 * 512; }); }},
      {"alloc.too_large", "takes a size that cannot be for memory that ran out",
       [](Record& r) {
         r.alloc = [inner = r.alloc](std::size_t n, const BufferSpec& spec) -> Result {
           Result buf = inner(n, spec);
           if (!buf.ok() && spec.alignment == 0) return absl::ResourceExhaustedError("out of memory");
           return buf;
         };
       }},
      {"alloc.exhausted",
       "gives a request above the limit another code",
       [](Record& r) { AnswerOtherCode(r, [] { return absl::InternalError("driver error 2"); }); },
       {.max_alloc_bytes = 16 << 20}},
      {"alloc.exhausted", "allocates more than it says it can", [](Record& r) { r.traits.max_alloc_bytes = 1 << 20; }},
      {"alloc.exhausted_device", "answers UNAVAILABLE when memory ran out",
       [](Record& r) { AnswerOtherCode(r, [] { return absl::UnavailableError("out of memory"); }); }},
      {"alloc.exceptions_pass", "swallows what the device threw",
       [](Record& r) {
         r.alloc = [inner = r.alloc](std::size_t n, const BufferSpec& spec) -> Result {
           try {
             return inner(n, spec);
           } catch (...) {
             return absl::InternalError("something was thrown");
           }
         };
       }},
      {"alloc.exceptions_pass", "leaks the block it had when the device threw",
       [](Record& r) {
         r.alloc = [inner = r.alloc](std::size_t n, const BufferSpec& spec) -> Result {
           try {
             return inner(n, spec);
           } catch (...) {
             (void)inner(8, {});
             throw;
           }
         };
       }},
      {"free.every_kind", "forgets the spec on free",
       [](Record& r) {
         r.free = [inner = r.free](const MockBuf& buf, std::size_t n, const BufferSpec&) { return inner(buf, n, {}); };
       }},
      {"free.returns_memory", "frees nothing",
       [](Record& r) { r.free = [](const MockBuf&, std::size_t, const BufferSpec&) { return absl::OkStatus(); }; }},
      {"free.pending_work", "reuses memory that a pending transfer still reads",
       [](Record& r) {
         CacheBySize(r);
         auto pending = std::make_shared<std::vector<std::function<absl::Status()>>>();
         r.transfer = [inner = r.transfer, pending](const MockBuf& dest, const MockBuf& src, std::size_t n) {
           pending->push_back([=] { return inner(dest, src, n); });
           return absl::OkStatus();
         };
         r.copyout = [inner = r.copyout, pending](absl::Span<std::byte> dest, const MockBuf& src) {
           for (const auto& work : *pending) (void)work();
           pending->clear();
           return inner(dest, src);
         };
       }},
      {"synchronize.any_time", "fails when nothing is pending",
       [](Record& r) { r.synchronize = [] { return absl::FailedPreconditionError("no event was recorded"); }; }},
      {"memory_info.sane", "mixes up free and total",
       [](Record& r) {
         r.memory_info = [inner = r.memory_info]() -> absl::StatusOr<MemoryInfo> {
           absl::StatusOr<MemoryInfo> info = inner();
           if (info.ok()) std::swap(info->free_bytes, info->total_bytes);
           return info;
         };
       }},
      {"threads.any_member", "relies on a current context of the first thread",
       [](Record& r) { BindToThread(r.alloc); }},
      {"threads.hand_over", "copies only on the thread that allocated",
       [](Record& r) {
         struct Homes {
           std::mutex mutex;
           std::map<std::uint64_t, std::thread::id> of;
         };
         auto homes = std::make_shared<Homes>();
         r.alloc = [inner = r.alloc, homes](std::size_t n, const BufferSpec& spec) {
           Result buf = inner(n, spec);
           const std::lock_guard lock(homes->mutex);
           if (buf.ok()) homes->of[buf->block] = std::this_thread::get_id();
           return buf;
         };
         r.copyin = [inner = r.copyin, homes](const MockBuf& dest, absl::Span<const std::byte> src) -> absl::Status {
           const std::lock_guard lock(homes->mutex);
           if (homes->of[dest.block] != std::this_thread::get_id()) return absl::InternalError("invalid context");
           return inner(dest, src);
         };
       }},
      {"threads.record_copies", "a copy works only where the original was made",
       [](Record& r) { BindToThread(r.copyin); }},
      {"packed.absent_members",
       "a layer wraps an empty member, which then looks set",
       [](Record& r) {
         r.offset = [inner = r.offset](const MockBuf& buf, std::size_t n, std::size_t at) { return inner(buf, n, at); };
       },
       {.absent = {Member::kOffset}},
       true},
  };
  return list;
}

}  // namespace packalloc::testing
