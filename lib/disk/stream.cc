#include "lib/disk/stream.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "lib/disk/async_reader.h"
#include "lib/disk/disk_file_access.h"
#include "lib/disk/system_calls.h"
#include "lib/mapped_memory.h"
#include "packalloc/disk_file.h"

namespace packalloc {
namespace {

using Access = DiskFileAccess;

constexpr std::size_t kBlock = std::size_t{4} << 20;        // one read
constexpr std::size_t kDepth = 16;                          // reads in flight, at most
constexpr std::uint64_t kWindow = std::uint64_t{32} << 20;  // the page cache is asked once for each
constexpr std::uint64_t kSmall = std::uint64_t{256} << 10;  // below it neither threads nor direct I/O pay
constexpr std::uint64_t kJoin = std::uint64_t{64} << 10;    // targets no further apart share a read
constexpr std::size_t kPage = 4096;

std::uint64_t AlignDown(std::uint64_t n, std::uint64_t step) { return n - n % step; }

// Part of one read's bytes, and where it goes.
struct Piece {
  std::size_t target;
  std::size_t target_offset;
  std::size_t from;  // byte of the read
  std::size_t nbytes;
};

struct Read {
  ReadOp op;
  std::vector<Piece> pieces;   // empty: the bytes went straight to where they belong
  std::size_t slot = kNoSlot;  // staging slot that `op` reads into
  static constexpr std::size_t kNoSlot = SIZE_MAX;
};

// What the next read is to be, before it has memory.
struct Plan {
  Read read;
  bool staged = false;
  bool inlined = false;  // small enough for the caller's thread
};

// Cuts the targets into reads, one at a time.
class Planner {
 public:
  Planner(absl::Span<const StreamTarget> targets, std::size_t slot_bytes) : targets_(targets), slot_(slot_bytes) {
    for (const StreamTarget& target : targets) total_ += target.nbytes;
    SkipEmpty();
  }

  bool done() const { return index_ == targets_.size(); }
  std::uint64_t total() const { return total_; }

  Plan Next() {
    const StreamTarget& target = targets_[index_];
    DiskFile& file = *target.file;
    const std::uint64_t offset = target.offset + position_;
    const std::uint64_t left = target.nbytes - position_;
    const bool cached = Cached(file, offset, left);
    const bool direct = !cached && Access::DirectFd(file) >= 0;
    const std::size_t alignment = direct ? Access::DirectAlignment(file) : 1;

    Plan plan;
    plan.inlined = total_ < kSmall;
    ReadOp& op = plan.read.op;
    op.file = &file;
    op.cached = cached;
    op.direct = direct && !plan.inlined;
    if (!op.direct && target.host != nullptr) return InPlace(std::move(plan), std::min<std::uint64_t>(left, kBlock));
    if (op.direct && target.host != nullptr) {
      const bool congruent =
          (reinterpret_cast<std::uintptr_t>(target.host) + position_) % alignment == 0 && offset % alignment == 0;
      const std::uint64_t whole = AlignDown(std::min<std::uint64_t>(left, kBlock), alignment);
      if (congruent && whole > 0) return InPlace(std::move(plan), whole);
    }
    return Staged(std::move(plan), alignment);
  }

 private:
  void SkipEmpty() {
    while (index_ < targets_.size() && position_ == targets_[index_].nbytes) {
      ++index_;
      position_ = 0;
    }
  }

  void Advance(std::uint64_t nbytes) {
    position_ += nbytes;
    SkipEmpty();
  }

  bool Cached(DiskFile& file, std::uint64_t offset, std::uint64_t left) {
    const std::uint64_t window = offset / kWindow;
    if (window_file_ != &file || window_ != window || offset < window_from_) {
      window_file_ = &file;
      window_from_ = offset;
      window_ = window;
      // Not past the end of the file: what is not there is in no cache.
      const std::uint64_t end = std::max(file.size().value_or(0), offset + left);
      const std::uint64_t nbytes = std::min((window + 1) * kWindow, end) - offset;
      window_cached_ = Access::System(file).CachedPart(Access::Fd(file), offset, nbytes).value_or(0) >= 0.5;
    }
    return window_cached_;
  }

  Plan InPlace(Plan plan, std::uint64_t nbytes) {
    const StreamTarget& target = targets_[index_];
    ReadOp& op = plan.read.op;
    op.offset = target.offset + position_;
    op.to = target.host + position_;
    op.nbytes = op.room = nbytes;
    Advance(nbytes);
    return plan;
  }

  // One slot's worth from here on, with all that follows closely in the same file. A host target that could be read
  // in place from the next aligned byte on gets only its head from the slot.
  Plan Staged(Plan plan, std::size_t alignment) {
    plan.staged = true;
    ReadOp& op = plan.read.op;
    op.offset = AlignDown(targets_[index_].offset + position_, alignment);
    std::uint64_t end = op.offset;
    while (!done()) {
      const StreamTarget& target = targets_[index_];
      const std::uint64_t offset = target.offset + position_;
      if (target.file != op.file || offset < end || (end > op.offset && offset - end > kJoin)) break;
      if (offset - op.offset >= slot_) break;
      std::uint64_t nbytes = std::min<std::uint64_t>(target.nbytes - position_, op.offset + slot_ - offset);
      const bool could_be_in_place =
          target.host != nullptr && (reinterpret_cast<std::uintptr_t>(target.host) - target.offset) % alignment == 0;
      if (could_be_in_place && target.nbytes - position_ >= 2 * kSmall) {
        nbytes = std::min<std::uint64_t>(nbytes, (alignment - offset % alignment) % alignment);
        if (nbytes == 0) break;
      }
      plan.read.pieces.push_back({index_, static_cast<std::size_t>(position_),
                                  static_cast<std::size_t>(offset - op.offset), static_cast<std::size_t>(nbytes)});
      end = offset + nbytes;
      Advance(nbytes);
    }
    op.nbytes = end - op.offset;
    op.room = std::min<std::uint64_t>(slot_, op.nbytes + (alignment - op.nbytes % alignment) % alignment);
    return plan;
  }

  absl::Span<const StreamTarget> targets_;
  std::size_t slot_;
  std::uint64_t total_ = 0;
  std::size_t index_ = 0;
  std::uint64_t position_ = 0;
  DiskFile* window_file_ = nullptr;
  std::uint64_t window_ = 0;
  std::uint64_t window_from_ = 0;
  bool window_cached_ = false;
};

// Page-aligned staging memory, made as needed and used again oldest first, so that a device has the most time to
// consume what was delivered from a slot.
class Slots {
 public:
  Slots(const StreamOptions& options, std::uint64_t total) : options_(options) {
    const std::size_t budget = std::max<std::size_t>(options.staging_bytes, 2 * kPage);
    bytes_ = AlignDown(std::clamp(budget / 2, kPage, std::max(options.most_slot_bytes, kPage)), kPage);
    most_ = std::min<std::size_t>(kDepth, budget / bytes_);
    if (total < bytes_) bytes_ = AlignDown(total, kPage) + 2 * kPage;
  }
  ~Slots() {
    for (std::byte* own : owned_) {
      if (mapped()) {
        munmap(own, MappedBytes(bytes_));
      } else {
        std::free(own);
      }
    }
  }
  Slots(const Slots&) = delete;
  Slots& operator=(const Slots&) = delete;

  std::size_t bytes() const { return bytes_; }
  std::byte* memory(std::size_t slot) const { return memory_[slot]; }
  bool available() const { return !free_.empty() || memory_.size() < most_; }

  absl::StatusOr<std::size_t> Take() {
    const bool reuse_costs_nothing = !free_.empty() && !options_.slot_free;
    if (memory_.size() < most_ && !reuse_costs_nothing) {
      absl::StatusOr<std::byte*> fresh = Make(memory_.size());
      if (fresh.ok()) {
        memory_.push_back(*fresh);
        used_.push_back(false);
        return memory_.size() - 1;
      }
      most_ = memory_.size();
      if (most_ == 0) return fresh.status();
      if (free_.empty()) return absl::UnavailableError("every slot is in flight");
    }
    const std::size_t slot = free_.front();
    free_.pop_front();
    if (used_[slot] && options_.slot_free) {
      used_[slot] = false;
      if (absl::Status consumed = options_.slot_free(slot); !consumed.ok()) return consumed;
    }
    return slot;
  }
  void MarkDelivered(std::size_t slot) { used_[slot] = true; }
  void Release(std::size_t slot) { free_.push_back(slot); }

  // Waits for everything that was delivered; the first error of all.
  absl::Status Settle() {
    absl::Status first;
    for (std::size_t slot = 0; slot < memory_.size(); ++slot) {
      if (used_[slot] && options_.slot_free) first.Update(options_.slot_free(slot));
      used_[slot] = false;
    }
    return first;
  }

 private:
  absl::StatusOr<std::byte*> Make(std::size_t slot) {
    if (options_.slot_memory) return options_.slot_memory(slot, bytes_);
    owned_.reserve(owned_.size() + 1);
    absl::StatusOr<std::byte*> memory = mapped() ? MapMemory("a staging slot", bytes_, kHugePage, true) : FromHeap();
    if (memory.ok()) owned_.push_back(*memory);
    return memory;
  }
  bool mapped() const { return bytes_ >= kHugePage; }
  absl::StatusOr<std::byte*> FromHeap() const {
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(kPage, bytes_));
    if (memory != nullptr) return memory;
    return absl::ResourceExhaustedError(absl::StrCat("no memory for a staging slot of ", bytes_, " bytes"));
  }

  const StreamOptions& options_;
  std::size_t bytes_;
  std::size_t most_;
  std::vector<std::byte*> memory_;
  std::vector<bool> used_;
  std::deque<std::size_t> free_;
  std::vector<std::byte*> owned_;
};

class Stream {
 public:
  Stream(absl::Span<const StreamTarget> targets, const StreamOptions& options, std::uint64_t total)
      : targets_(targets), options_(options), slots_(options, total), planner_(targets, slots_.bytes()) {}

  // Whatever way it is left, by return or by exception, nothing is in flight afterwards: members are destroyed in
  // reverse order, the reader (which waits for its reads) before the slots that they fill.
  absl::Status Run() {
    struct Settled {
      Stream& stream;
      ~Settled() {
        stream.reader_.reset();
        try {
          stream.slots_.Settle().IgnoreError();
        } catch (...) {  // the first failure is the one that is told
        }
      }
    };
    const Settled settled{*this};
    while (!planner_.done() || next_ || !in_flight_.empty()) {
      if (absl::Status filled = Fill(); !filled.ok()) return filled;
      if (absl::Status finished = FinishOne(); !finished.ok()) return finished;
    }
    return slots_.Settle();
  }

 private:
  enum class Mode { kNone, kInline, kThreads, kDirect };

  static Mode ModeOf(const Plan& plan) {
    return plan.inlined ? Mode::kInline : plan.read.op.direct ? Mode::kDirect : Mode::kThreads;
  }

  // Submits reads until the pipeline is full.
  absl::Status Fill() {
    while (in_flight_.size() < kDepth) {
      if (!next_) {
        if (planner_.done()) return absl::OkStatus();
        next_ = planner_.Next();
      }
      if (const Mode mode = ModeOf(*next_); mode != mode_) {
        if (!in_flight_.empty()) return absl::OkStatus();
        SwitchTo(mode, *next_->read.op.file);
      }
      auto read = std::make_unique<Read>(next_->read);
      if (next_->staged) {
        if (!slots_.available()) return absl::OkStatus();
        absl::StatusOr<std::size_t> slot = slots_.Take();
        if (absl::IsUnavailable(slot.status()) && !in_flight_.empty()) return absl::OkStatus();
        if (!slot.ok()) return slot.status();
        read->slot = *slot;
        read->op.to = slots_.memory(*slot);
      }
      next_.reset();
      ReadOp* op = &read->op;
      in_flight_.push_back(std::move(read));
      reader_->Submit(op);
    }
    return absl::OkStatus();
  }

  void SwitchTo(Mode mode, DiskFile& file) {
    reader_.reset();
    mode_ = mode;
    if (mode == Mode::kDirect) reader_ = MakeUringReader(file, kDepth);
    if (reader_ == nullptr) {
      const unsigned cores = std::max(1U, std::thread::hardware_concurrency());
      // Direct reads wait for the disk, not for a core.
      const unsigned threads = mode == Mode::kInline ? 0 : mode == Mode::kDirect ? 8 : std::min(4U, cores);
      reader_ = MakeThreadReader(planner_.total() < kBlock ? 0 : threads);
    }
  }

  absl::Status FinishOne() {
    if (in_flight_.empty()) return absl::OkStatus();
    const ReadOp* op = reader_->Wait();
    const auto found =
        std::find_if(in_flight_.begin(), in_flight_.end(), [op](const auto& read) { return &read->op == op; });
    const std::unique_ptr<Read> read = std::move(*found);
    in_flight_.erase(found);
    if (!op->status.ok()) return op->status;
    if (absl::Status delivered = Deliver(*read); !delivered.ok()) return delivered;
    if (read->slot != Read::kNoSlot) slots_.Release(read->slot);
    if (options_.progress && !options_.progress(done_)) {
      return absl::CancelledError(absl::StrCat("cancelled after ", done_, " bytes"));
    }
    return absl::OkStatus();
  }

  absl::Status Deliver(const Read& read) {
    if (read.slot == Read::kNoSlot) done_ += read.op.nbytes;
    for (const Piece& piece : read.pieces) {
      const std::byte* from = read.op.to + piece.from;
      if (std::byte* host = targets_[piece.target].host; host != nullptr) {
        std::memcpy(host + piece.target_offset, from, piece.nbytes);
      } else {
        slots_.MarkDelivered(read.slot);
        absl::Status delivered = options_.deliver(piece.target, piece.target_offset, {from, piece.nbytes}, read.slot);
        if (!delivered.ok()) return delivered;
      }
      done_ += piece.nbytes;
    }
    return absl::OkStatus();
  }

  absl::Span<const StreamTarget> targets_;
  const StreamOptions& options_;
  Slots slots_;
  Planner planner_;
  std::optional<Plan> next_;
  std::vector<std::unique_ptr<Read>> in_flight_;
  std::uint64_t done_ = 0;
  Mode mode_ = Mode::kNone;
  std::unique_ptr<AsyncReader> reader_;
};

}  // namespace

absl::Status StreamFromDisk(absl::Span<const StreamTarget> targets, const StreamOptions& options) {
  std::uint64_t total = 0;
  for (const StreamTarget& target : targets) {
    if (absl::Status inside = target.file->CheckRange(target.offset, target.nbytes); !inside.ok()) return inside;
    if (target.host == nullptr && target.nbytes > 0 && !options.deliver) {
      return absl::InvalidArgumentError("a target has neither host memory nor a function that delivers to it");
    }
    total += target.nbytes;
  }
  if (total == 0) return absl::OkStatus();
  return Stream(targets, options, total).Run();
}

}  // namespace packalloc
