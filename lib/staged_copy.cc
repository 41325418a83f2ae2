#include "lib/staged_copy.h"

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "packalloc/copy.h"
#include "packalloc/packed_allocator.h"

namespace packalloc {
namespace {

constexpr std::size_t kMostChunk = std::size_t{4} << 20;
constexpr std::size_t kMostSlots = 8;
constexpr std::size_t kPage = 4096;

struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};

// One staging slot; grows where a pair that cannot be cut into chunks needs more.
struct Slot {
  std::unique_ptr<std::byte, Free> memory;
  std::size_t room = 0;
};

struct Chunk {
  const CopyPair* pair = nullptr;
  std::size_t offset = 0;
  std::size_t nbytes = 0;
  std::size_t slot = 0;
};

// The buffer itself where the chunk is all of it, else a view.
absl::StatusOr<AnyBuf> Part(const BufferRef& ref, const Chunk& chunk) {
  if (chunk.offset == 0 && chunk.nbytes == ref.buffer.nbytes()) return ref.buffer;
  return ref.allocator.offset(ref.buffer, chunk.nbytes, chunk.offset);
}

class Pipeline {
 public:
  Pipeline(absl::Span<const CopyPair* const> pairs, std::size_t staging_bytes, bool backwards)
      : pairs_(pairs), backwards_(backwards) {
    std::size_t largest = 0;
    for (const CopyPair* pair : pairs) largest = std::max(largest, pair->dest.buffer.nbytes());
    chunk_bytes_ = std::clamp<std::size_t>(staging_bytes / 4, kPage, kMostChunk);
    if (largest <= chunk_bytes_) chunk_bytes_ = largest;
    slots_.resize(std::clamp<std::size_t>(staging_bytes / std::max<std::size_t>(chunk_bytes_, 1), 2, kMostSlots));
    for (std::size_t i = 0; i < slots_.size(); ++i) free_.push_back(i);
  }

  absl::Status Run(const std::function<bool(std::uint64_t)>& progress) {
    std::thread reader = OneChunk() ? std::thread() : StartReader();
    if (!reader.joinable()) return RunInline(progress);
    struct Joined {
      Pipeline& pipeline;
      std::thread& thread;
      ~Joined() {
        pipeline.Stop();
        thread.join();
      }
    };
    absl::Status status;
    {
      const Joined joined{*this, reader};
      status = WriteAll(progress);
    }
    if (thrown_) std::rethrow_exception(thrown_);
    return status;
  }

  std::size_t peak_bytes() const { return peak_; }

 private:
  bool OneChunk() const { return pairs_.size() == 1 && pairs_[0]->dest.buffer.nbytes() <= chunk_bytes_; }

  std::thread StartReader() {
    try {
      return std::thread([this] { ReadAll(); });
    } catch (const std::system_error&) {
      return {};  // no thread to be had: slower, but copied all the same
    }
  }

  // The chunk after `last`, or nullopt at the end.
  std::optional<Chunk> Next() {
    while (pair_ < pairs_.size()) {
      const CopyPair& pair = *pairs_[pair_];
      const std::size_t total = pair.dest.buffer.nbytes();
      if (done_of_pair_ == total) {
        ++pair_;
        done_of_pair_ = 0;
        continue;
      }
      const bool whole = !pair.dest.allocator.supports_offset() || !pair.src.allocator.supports_offset();
      const std::size_t nbytes = whole ? total : std::min(chunk_bytes_, total - done_of_pair_);
      const std::size_t offset = backwards_ ? total - done_of_pair_ - nbytes : done_of_pair_;
      done_of_pair_ += nbytes;
      return Chunk{&pair, offset, nbytes, 0};
    }
    return std::nullopt;
  }

  absl::Status ReadChunk(const Chunk& chunk) {
    Slot& slot = slots_[chunk.slot];
    if (slot.room < chunk.nbytes) {
      peak_ -= slot.room;
      slot.room = 0;
      slot.memory.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, (chunk.nbytes + kPage - 1) / kPage * kPage)));
      if (slot.memory == nullptr) {
        return absl::ResourceExhaustedError(absl::StrCat("no host memory to stage ", chunk.nbytes, " bytes in"));
      }
      slot.room = chunk.nbytes;
      peak_ += slot.room;
    }
    absl::StatusOr<AnyBuf> part = Part(chunk.pair->src, chunk);
    if (!part.ok()) return part.status();
    return chunk.pair->src.allocator.copyout({slot.memory.get(), chunk.nbytes}, *part);
  }

  absl::Status WriteChunk(const Chunk& chunk, const std::function<bool(std::uint64_t)>& progress) {
    absl::StatusOr<AnyBuf> part = Part(chunk.pair->dest, chunk);
    if (!part.ok()) return part.status();
    absl::Status written = chunk.pair->dest.allocator.copyin(*part, {slots_[chunk.slot].memory.get(), chunk.nbytes});
    if (!written.ok()) return written;
    done_ += chunk.nbytes;
    if (progress && !progress(done_)) return absl::CancelledError(absl::StrCat("cancelled after ", done_, " bytes"));
    return absl::OkStatus();
  }

  absl::Status RunInline(const std::function<bool(std::uint64_t)>& progress) {
    while (const std::optional<Chunk> chunk = Next()) {
      if (absl::Status read = ReadChunk(*chunk); !read.ok()) return read;
      if (absl::Status written = WriteChunk(*chunk, progress); !written.ok()) return written;
    }
    return absl::OkStatus();
  }

  void ReadAll() {
    try {
      while (std::optional<Chunk> chunk = Next()) {
        {
          std::unique_lock lock(mutex_);
          slot_freed_.wait(lock, [this] { return stopped_ || !free_.empty(); });
          if (stopped_) return;
          chunk->slot = free_.front();
          free_.pop_front();
        }
        absl::Status read = ReadChunk(*chunk);
        const std::lock_guard lock(mutex_);
        if (!read.ok()) {
          read_status_ = std::move(read);
          break;
        }
        filled_.push_back(*chunk);
        chunk_filled_.notify_one();
      }
    } catch (...) {
      thrown_ = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    reader_done_ = true;
    chunk_filled_.notify_one();
  }

  absl::Status WriteAll(const std::function<bool(std::uint64_t)>& progress) {
    for (;;) {
      Chunk chunk;
      {
        std::unique_lock lock(mutex_);
        chunk_filled_.wait(lock, [this] { return reader_done_ || !filled_.empty(); });
        if (filled_.empty()) return read_status_;
        chunk = filled_.front();
        filled_.pop_front();
      }
      if (absl::Status written = WriteChunk(chunk, progress); !written.ok()) return written;
      const std::lock_guard lock(mutex_);
      free_.push_back(chunk.slot);
      slot_freed_.notify_one();
    }
  }

  void Stop() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    slot_freed_.notify_one();
  }

  absl::Span<const CopyPair* const> pairs_;
  const bool backwards_;
  std::size_t chunk_bytes_ = 0;
  std::size_t pair_ = 0;          // reader's
  std::size_t done_of_pair_ = 0;  // reader's
  std::size_t peak_ = 0;          // reader's, read after it has ended
  std::exception_ptr thrown_;     // likewise
  std::uint64_t done_ = 0;        // writer's
  std::vector<Slot> slots_;       // each belongs to whoever took it from `free_` or `filled_`

  std::mutex mutex_;  // guards what follows
  std::condition_variable slot_freed_;
  std::condition_variable chunk_filled_;
  std::deque<std::size_t> free_;
  std::deque<Chunk> filled_;
  absl::Status read_status_;
  bool reader_done_ = false;
  bool stopped_ = false;
};

}  // namespace

absl::StatusOr<std::size_t> StagedCopy(absl::Span<const CopyPair* const> pairs, std::size_t staging_bytes,
                                       bool backwards, const std::function<bool(std::uint64_t done)>& progress) {
  Pipeline pipeline(pairs, staging_bytes, backwards);
  if (absl::Status copied = pipeline.Run(progress); !copied.ok()) return copied;
  return pipeline.peak_bytes();
}

}  // namespace packalloc
