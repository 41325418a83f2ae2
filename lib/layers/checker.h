// What the Checked layer keeps of one record.
#ifndef PACKALLOC_LIB_LAYERS_CHECKER_H_
#define PACKALLOC_LIB_LAYERS_CHECKER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/fork_guard.h"
#include "lib/layers/buffer_map.h"
#include "lib/layers/stack_trace.h"
#include "packalloc/layers/checked.h"

namespace packalloc {

// How a buffer lies in what is taken from the inner record: `front` bytes of guard, the buffer, `back` bytes of guard.
struct GuardLayout {
  std::size_t front = 0;
  std::size_t back = 0;
  std::size_t inner_bytes = 0;
};

struct CheckedBuffer {
  BufferSpec spec;
  AnyBuf base;  // what the inner alloc gave
  GuardLayout layout;
  bool guarded = false;
  bool poisoned = false;  // fresh and freed
  StackTrace allocated_at;
  StackTrace freed_at;
};

class Checker final : public CheckedControl {
 public:
  // `record` with a checker between it and the result.
  static AnyRecord Over(AnyRecord record, const CheckedOptions& options);
  ~Checker() override;

  absl::StatusOr<AnyBuf> Alloc(std::size_t nbytes, const BufferSpec& spec);
  absl::Status Free(const AnyBuf& buf, std::size_t nbytes, const BufferSpec& spec);
  absl::Status Transfer(const AnyBuf& dest, const AnyBuf& src, std::size_t nbytes);
  absl::StatusOr<AnyBuf> Offset(const AnyBuf& buf, std::size_t nbytes, std::size_t byte_offset);
  absl::StatusOr<std::byte*> HostPtr(const AnyBuf& buf);
  DeviceAddress Addr(const AnyBuf& buf);
  // Whether `nbytes` from the start of `buf` may be touched. `operation` names the caller's call.
  absl::Status CheckAccess(const char* operation, const AnyBuf& buf, std::size_t nbytes, bool others_too = false);

  CheckedStats stats() const override;
  std::vector<CheckedReport> leaks() const override;
  void ReportLeaks() const override;

 private:
  using Map = BufferMap<CheckedBuffer>;
  using Entry = Map::Entry;
  using Pointer = Map::Pointer;

  // The buffers that were freed last, for telling where. Locked across forks.
  class History final : private ForkGuarded {
   public:
    explicit History(std::size_t most) : most_(most) { BeginForkGuard(this, ForkRank::kCache); }
    ~History() override { EndForkGuard(this); }
    History(const History&) = delete;
    History& operator=(const History&) = delete;
    void Add(const Pointer& entry);
    // Undoes the Add of that entry.
    void Remove(const Pointer& entry);
    // By serial number where that is not 0, else by address. Null: not known.
    Pointer Find(std::uint64_t serial, DeviceAddress at) const;

   private:
    void Unlist(const Pointer& freed);
    void BeforeFork() override { mutex_.lock(); }
    void AfterFork(bool /*in_child*/) override { mutex_.unlock(); }

    const std::size_t most_;
    mutable std::mutex mutex_;
    std::deque<Pointer> order_;
    absl::flat_hash_map<std::uint64_t, Pointer> by_serial_;
    std::multimap<std::pair<std::uintptr_t, std::size_t>, Pointer> by_address_;
  };

  Checker(AnyRecord inner, const CheckedOptions& options);

  // The live buffer of `buf`, or nothing.
  Map::Found Live(const AnyBuf& buf) const;
  GuardLayout LayoutOf(std::size_t nbytes, const BufferSpec& spec) const;
  AnyBuf Guard(const AnyBuf& base, std::size_t nbytes, CheckedBuffer& buffer);
  absl::StatusOr<AnyBuf> Track(AnyBuf base, std::size_t nbytes, CheckedBuffer buffer);
  std::optional<absl::Status> CheckGuards(const Entry& entry);
  bool Fill(const AnyBuf& base, std::size_t from, std::size_t nbytes, std::byte pattern) noexcept;
  // The first byte of a guard that is not as it was, from its start.
  std::optional<std::size_t> Damage(const AnyBuf& base, std::size_t from, std::size_t nbytes) noexcept;
  void FreeQuietly(const AnyBuf& base, std::size_t nbytes, const BufferSpec& spec) noexcept;

  // Tells of a fault and gives its status.
  absl::Status Fault(CheckedFault fault, const std::string& what, const Entry* entry);
  absl::Status NotLive(const char* operation, const AnyBuf& buf, CheckedFault if_freed, bool others_too);
  CheckedReport ReportOf(CheckedFault fault, const std::string& what, const Entry* entry) const;

  const AnyRecord inner_;
  const CheckedOptions options_;
  Map live_;
  History freed_;
  std::atomic<std::uint64_t> faults_{0};
};

}  // namespace packalloc

#endif  // PACKALLOC_LIB_LAYERS_CHECKER_H_
