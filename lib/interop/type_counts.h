// How many objects of each type were made and dropped. Written by one thread at a time, read by any at the same time:
// plain additions, no atomic read-modify-write. Sums over several threads' counts wrap, and come out right.
#ifndef PACKALLOC_LIB_INTEROP_TYPE_COUNTS_H_
#define PACKALLOC_LIB_INTEROP_TYPE_COUNTS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

namespace packalloc::internal {

class TypeCounts {
 public:
  static constexpr std::int32_t kOtherTypes = -1;

  struct Row {
    std::atomic<std::uint64_t> made{0};
    std::atomic<std::uint64_t> dropped{0};
    std::atomic<std::uint64_t> live_bytes{0};
  };

  TypeCounts() = default;
  TypeCounts(const TypeCounts&) = delete;
  TypeCounts& operator=(const TypeCounts&) = delete;
  ~TypeCounts() {
    for (auto& chunk : chunks_) delete chunk.load(std::memory_order_relaxed);
  }

  void Made(std::int32_t type_index, std::uint64_t bytes) {
    Row& row = RowOf(type_index);
    Add(row.made, 1);
    Add(row.live_bytes, bytes);
  }
  void Dropped(std::int32_t type_index, std::uint64_t bytes) {
    Row& row = RowOf(type_index);
    Add(row.dropped, 1);
    Add(row.live_bytes, -bytes);
  }

  // visit(type_index, made, dropped, live_bytes) for each row that has been used.
  template <typename Visit>
  void ForEach(Visit&& visit) const {
    const auto show = [&](std::int32_t type_index, const Row& row) {
      const std::uint64_t made = row.made.load(std::memory_order_relaxed);
      const std::uint64_t dropped = row.dropped.load(std::memory_order_relaxed);
      if (made != 0 || dropped != 0) visit(type_index, made, dropped, row.live_bytes.load(std::memory_order_relaxed));
    };
    show(kOtherTypes, other_);
    for (std::size_t i = 0; i < kChunks; ++i) {
      const Chunk* chunk = chunks_[i].load(std::memory_order_acquire);
      if (chunk == nullptr) continue;
      for (std::size_t j = 0; j < kChunkTypes; ++j) show(static_cast<std::int32_t>(i * kChunkTypes + j), (*chunk)[j]);
    }
  }

 private:
  static constexpr std::size_t kChunkTypes = 64;
  static constexpr std::size_t kChunks = 128;
  using Chunk = std::array<Row, kChunkTypes>;

  static void Add(std::atomic<std::uint64_t>& to, std::uint64_t n) {
    to.store(to.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }

  Row& RowOf(std::int32_t type_index) {
    const auto index = static_cast<std::uint32_t>(type_index);
    if (index >= kChunkTypes * kChunks) return other_;
    Chunk* const chunk = chunks_[index / kChunkTypes].load(std::memory_order_relaxed);
    if (chunk == nullptr) [[unlikely]]
      return FirstRow(index);
    return (*chunk)[index % kChunkTypes];
  }
  [[gnu::noinline]] Row& FirstRow(std::uint32_t index) {
    Chunk* const chunk = new (std::nothrow) Chunk();
    if (chunk == nullptr) return other_;
    chunks_[index / kChunkTypes].store(chunk, std::memory_order_release);
    return (*chunk)[index % kChunkTypes];
  }

  std::array<std::atomic<Chunk*>, kChunks> chunks_{};
  Row other_;
};

}  // namespace packalloc::internal

#endif  // PACKALLOC_LIB_INTEROP_TYPE_COUNTS_H_
