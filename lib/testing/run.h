// What the clauses of the contract suite are written with: one Run is one clause at work on one fresh record.
#ifndef PACKALLOC_LIB_TESTING_RUN_H_
#define PACKALLOC_LIB_TESTING_RUN_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "packalloc/allocator.h"
#include "packalloc/packed_allocator.h"
#include "packalloc/testing/check_contract.h"

namespace packalloc::testing {

inline constexpr std::size_t kMax = std::numeric_limits<std::size_t>::max();

// What a clause needs to apply.
enum Need : unsigned {
  kNothing = 0,
  kBytes = 1u << 0,   // it looks at bytes: not for a backend that moves none
  kRanges = 1u << 1,  // left out silently where ranges are not checked
  kPacked = 1u << 2,  // left out silently for raw records
  kOffset = 1u << 3,
  kTransfer = 1u << 4,
  kDisk = 1u << 5,
  kHostPtr = 1u << 6,
  kMemoryInfo = 1u << 7,
  kLiveBlocks = 1u << 8,
  kDriverCalls = 1u << 9,
  kThrowHook = 1u << 10,
  kExhaustHook = 1u << 11,
};

class Run;

struct Clause {
  const char* name;
  const char* what;
  unsigned needs;
  void (*run)(Run&);
};

using ClauseList = std::vector<Clause>;
const ClauseList& RecordClauses();
const ClauseList& AllocClauses();
const ClauseList& CopyClauses();
const ClauseList& AddressClauses();
const ClauseList& OffsetClauses();
const ClauseList& TransferClauses();
const ClauseList& DiskClauses();
const ClauseList& HostPtrClauses();
const ClauseList& SpecClauses();
const ClauseList& ThreadClauses();
const ClauseList& PackedClauses();

// Ends a clause whose violation has been noted.
struct Stop {};
// Ends a clause that does not apply after all.
struct NotApplicable {
  std::string why;
};

// A buffer that the run frees at its end unless the clause did.
struct Block {
  AnyBuf buf;
  std::size_t nbytes;
  BufferSpec spec;
  bool freed = false;
};

using Bytes = std::vector<std::byte>;

// Bytes that depend on place and seed, so that a shift, a swap or a stale block shows.
Bytes Pattern(std::uint32_t seed, std::size_t nbytes);

class Run {
 public:
  Run(const Clause& clause, Subject subject, const SubjectFactory& factory, const ContractOptions& options)
      : clause_(clause), subject_(std::move(subject)), factory_(factory), options_(options) {}
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  AnyRecord& record() { return subject_.record; }
  const AllocatorTraits& traits() { return subject_.record.traits; }
  const PackedAllocator& packed() { return subject_.packed; }
  const ContractOptions& options() const { return options_; }
  // A copy of the record, as a user copies the typed one.
  AnyRecord Copy() const { return subject_.copy(); }
  // A further record of the same factory.
  Subject Another();

  // Notes a violation; thread-safe. The parts are joined as by absl::StrCat.
  template <typename... Parts>
  void Fail(const Parts&... parts) {
    Note(absl::StrCat(parts...));
  }
  template <typename... Parts>
  bool Expect(bool holds, const Parts&... parts) {
    if (!holds) Note(absl::StrCat(parts...));
    return holds;
  }
  template <typename... Parts>
  void Require(bool holds, const Parts&... parts) {
    if (!Expect(holds, parts...)) throw Stop();
  }
  void ExpectOk(const absl::Status& status, const std::string& what);
  void RequireOk(const absl::Status& status, const std::string& what);
  void ExpectCode(const absl::Status& status, absl::StatusCode code, const std::string& what);

  // Allocates; stops the clause where that fails.
  Block& Alloc(std::size_t nbytes, const BufferSpec& spec = {});
  // Null where the spec is answered with INVALID_ARGUMENT, which a backend may; stops at any other failure.
  Block* AllocIfGranted(std::size_t nbytes, const BufferSpec& spec);
  // Frees now; a failure is a violation.
  void Free(Block& block);
  // Takes over a buffer that the clause allocated itself.
  Block& Keep(AnyBuf buf, std::size_t nbytes, const BufferSpec& spec = {});
  // A buffer with a host_ptr, of whatever kind has one; NotApplicable where none has.
  Block& AllocHost(std::size_t nbytes);
  AnyBuf View(const AnyBuf& buf, std::size_t nbytes, std::size_t byte_offset);

  void Write(const AnyBuf& dest, absl::Span<const std::byte> bytes);
  void Fill(const AnyBuf& dest, std::size_t nbytes, std::uint32_t seed) { Write(dest, Pattern(seed, nbytes)); }
  // Copies out between guard bytes, which must stay as they are.
  Bytes Read(const AnyBuf& src, std::size_t nbytes);
  // Whether the first bytes of `src` are `wanted`; a difference is a violation.
  bool Holds(const AnyBuf& src, absl::Span<const std::byte> wanted, const std::string& what);
  bool Holds(const AnyBuf& src, std::size_t nbytes, std::uint32_t seed, const std::string& what) {
    return Holds(src, Pattern(seed, nbytes), what);
  }
  bool Same(absl::Span<const std::byte> got, absl::Span<const std::byte> wanted, const std::string& what);
  void Transfer(const AnyBuf& dest, const AnyBuf& src, std::size_t nbytes);
  void Synchronize();

  // Runs `body(i)` on `count` threads at once. A Stop ends its thread; an exception is a violation.
  void OnThreads(std::size_t count, const std::function<void(std::size_t)>& body);

  // Frees what is left, quietly.
  void CleanUp();
  std::vector<std::string> TakeViolations() { return std::move(violations_); }

 private:
  void Note(std::string what);
  absl::StatusOr<Block*> TryAlloc(std::size_t nbytes, const BufferSpec& spec);

  const Clause& clause_;
  Subject subject_;
  const SubjectFactory& factory_;
  const ContractOptions& options_;
  std::mutex mutex_;
  std::deque<Block> blocks_;
  std::vector<std::string> violations_;
};

}  // namespace packalloc::testing

#endif  // PACKALLOC_LIB_TESTING_RUN_H_
