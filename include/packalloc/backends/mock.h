// MOCK: a device for tests. It keeps real bytes, logs every call, fails where it is told to, has a capacity, finds
// foreign and double frees, and can be lazy, so that a missing synchronize shows. An engine is tested like this:
//
//   auto record = packalloc::MockAllocator({.capacity_bytes = 1 << 20, .lazy = true});
//   std::shared_ptr<packalloc::MockControl> mock = packalloc::Find<packalloc::MockControl>(record);
//   Engine engine(*packalloc::Pack(record), [&](const Kernel& k) { mock->log().Add("kernel " + k.name); });
//   mock->FailNth(packalloc::Member::kTransfer, 2, absl::UnavailableError("link down"));
//   engine.Step();
//   CHECK(mock->log().Lines() == std::vector<std::string>{"MOCK: alloc 64 -> #1", "MOCK: copyin #1 64", "kernel add"});
//   CHECK(mock->live_bytes() == 0);
//   CHECK(mock->misuses().empty());
#ifndef PACKALLOC_BACKENDS_MOCK_H_
#define PACKALLOC_BACKENDS_MOCK_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "packalloc/allocator.h"
#include "packalloc/buffer_spec.h"

namespace packalloc {

// The handle of a mock's buffer: `nbytes` at `byte_offset` of a block. `block` is never reused in the process; its
// lower half counts from 1 in each transfer domain and is what the log shows. 0: the empty buffer.
struct MockBuf {
  std::uint64_t block = 0;
  std::size_t byte_offset = 0;
  std::size_t nbytes = 0;
  friend bool operator==(const MockBuf&, const MockBuf&) = default;
};

// An entry of the user's own in a log, made with MockLog::Add: no member was called.
inline constexpr std::nullopt_t kUserEntry = std::nullopt;

struct MockEntry {
  std::optional<Member> call = kUserEntry;
  std::string device{};    // the mock's name; empty for kUserEntry
  MockBuf buf{};           // the buffer of the call: alloc's result, the destination of a copy, the source of copyout
  MockBuf source{};        // of transfer; of offset the buffer that the view was made from
  std::size_t nbytes = 0;  // as given to the call
  absl::Status status{};   // what the call answered; UNKNOWN where a scripted exception left it
  std::string text{};      // of kUserEntry
};

// "MOCK: alloc 4096 -> #1", "MOCK: copyin #1+64 16", "MOCK: transfer #2 <- #1 4096", "MOCK: free #1 4096:
// INVALID_ARGUMENT"; a user's entry is its text.
std::string ToString(const MockEntry& entry);

// The calls of one mock, or of several that share the log, in the order in which they were issued, with the user's own
// entries between them. Thread-safe. Calls on zero bytes reach no device and are not logged.
class MockLog {
 public:
  void Add(std::string text);
  void Add(MockEntry entry);
  std::vector<MockEntry> entries() const;
  // The entries as text; of the kinds in `only`, or of all where that is empty.
  std::vector<std::string> Lines(std::initializer_list<std::optional<Member>> only = {}) const;
  // How many entries of that kind there are, failed calls included.
  std::size_t Count(Member call) const;
  void Clear();

 private:
  mutable std::mutex mutex_;
  std::vector<MockEntry> entries_;
};

// What a mock offers beside the record: Find<MockControl>(record or packed), through any layers. Thread-safe.
class MockControl {
 public:
  virtual ~MockControl() = default;

  virtual MockLog& log() = 0;

  // The nth call of that member from now on (1: the next one) answers `status` or throws `exception`, and nothing else
  // happens. Several may be scripted; each counts for itself. Calls of addr, which has no status, then give {0, 0}.
  virtual void FailNth(Member call, std::uint64_t nth, absl::Status status) = 0;
  virtual void ThrowNth(Member call, std::uint64_t nth, std::exception_ptr exception) = 0;
  // Every call from now on, until ClearFailures.
  virtual void FailAll(Member call, absl::Status status) = 0;
  virtual void ThrowAll(Member call, std::exception_ptr exception) = 0;
  // `hook` runs at the start of every call of that member, without a lock: it may call the record, wait for another
  // thread, answer an error or throw, which is then the call's result.
  virtual void OnCall(Member call, std::function<absl::Status()> hook) = 0;
  virtual void ClearFailures() = 0;

  struct Live {
    MockBuf buf;
    BufferSpec spec;
  };
  // What was allocated and not freed yet, oldest first. Wrapped external memory counts as a block of 0 bytes.
  virtual std::vector<Live> live() const = 0;
  virtual std::size_t live_blocks() const = 0;
  virtual std::size_t live_bytes() const = 0;
  virtual std::size_t peak_live_bytes() const = 0;

  // Wrong uses, one sentence each: foreign and double frees, frees with another size or spec, use after free. Each was
  // answered with an error too, but an engine's destructor may have dropped that.
  virtual std::vector<std::string> misuses() const = 0;

  // Lazy mode: operations issued through this record that nothing has demanded yet.
  virtual std::size_t pending() const = 0;
  // Puts `work` (a test's kernel) behind what was issued so far: run at once by an eager mock, and by a lazy one when a
  // synchronize, or a copy of one of the buffers in `touches`, demands it. Logged as a user's entry `name`. `work` runs
  // without a lock and reaches the bytes of buffers with Bytes.
  virtual absl::Status Launch(std::string name, std::vector<MockBuf> touches, std::function<void()> work) = 0;
  // The device's own view of a buffer's bytes, host-accessible or not, for kernels of a test; demands no pending work.
  // Valid until the buffer is freed. INVALID_ARGUMENT for a buffer that is not live.
  virtual absl::StatusOr<absl::Span<std::byte>> Bytes(const MockBuf& buf) = 0;
};

struct MockOptions {
  std::string name = "MOCK";
  // Bytes that can be live at once; more is RESOURCE_EXHAUSTED. Taken from the mock that `shares_memory_with` names.
  std::size_t capacity_bytes = std::numeric_limits<std::size_t>::max();
  std::size_t max_alloc_bytes = std::numeric_limits<std::ptrdiff_t>::max();
  std::size_t min_alignment = 64;
  // true: addresses are made-up pointers, never reused, at which the CPU finds nothing (kernels of a test use
  // MockControl::Bytes). false: they are opaque handles with the byte offset beside them.
  bool address_is_pointer = true;
  // true: every buffer has a host_ptr. false: only those with spec.host or spec.cpu_access, as on a GPU.
  bool host_accessible = true;
  // Operations happen only when a synchronize, a copyout, or the free of external memory demands them. copyin takes a
  // copy of its source when called.
  bool lazy = false;
  // What fresh memory is filled with, so that nothing works because it happened to be zero.
  std::byte poison{0xCB};
  // Optional members left empty, of kOffset, kTransfer, kHostPtr, kMemoryInfo, kSynchronize.
  std::vector<Member> absent{};
  // Fills `dest` with the first dest.size() bytes of an extent. Where set, the record has copy_from_disk.
  std::function<absl::Status(absl::Span<std::byte> dest, const DiskExtent& src)> read_extent{};
  std::shared_ptr<MockLog> log{};  // null: a log of its own. Give one to several mocks to see the order between them
  bool log_calls = true;           // false: for long runs, nothing is logged
  // The control of a mock whose buffers this one can transfer from and to (one transfer domain), or null.
  std::shared_ptr<MockControl> transfers_with{};
  // The control of a mock whose memory this one draws on (one memory domain, one capacity), or null.
  std::shared_ptr<MockControl> shares_memory_with{};
};

// A mock device. Sizes up to PTRDIFF_MAX can be allocated: memory is taken only where bytes are touched. Its errors
// are those of the contract in allocator.h; every wrong use of a handle is INVALID_ARGUMENT. Thread-safe.
Allocator<MockBuf> MockAllocator(MockOptions options = {});

}  // namespace packalloc

#endif  // PACKALLOC_BACKENDS_MOCK_H_
