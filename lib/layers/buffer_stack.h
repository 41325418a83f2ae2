// The cached buffers of one key, oldest first: reuse takes the newest, eviction the oldest.
#ifndef PACKALLOC_LIB_LAYERS_BUFFER_STACK_H_
#define PACKALLOC_LIB_LAYERS_BUFFER_STACK_H_

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <utility>

#include "lib/layers/eviction.h"
#include "packalloc/packed_allocator.h"

namespace packalloc {

// An array that is taken from at both ends. Not a std::vector, which knows no front and destroys what is taken one by
// one: most handles need no destruction, and on the hot path asking each costs more than taking it.
class BufferStack {
 public:
  struct Cached {
    AnyBuf buf;
    Priority priority;
  };

  BufferStack() = default;
  BufferStack(BufferStack&& other) noexcept { Swap(other); }
  BufferStack& operator=(BufferStack&& other) noexcept {
    Swap(other);
    return *this;
  }
  ~BufferStack() {
    std::destroy(oldest_, end_);
    std::allocator<Cached>().deallocate(begin_, static_cast<std::size_t>(limit_ - begin_));
  }

  bool empty() const { return oldest_ == end_; }
  std::size_t size() const { return static_cast<std::size_t>(end_ - oldest_); }
  bool has_room() const { return end_ != limit_; }
  Cached& oldest() { return *oldest_; }
  Cached& newest() { return end_[-1]; }

  // Room for one more. May throw std::bad_alloc, and changes nothing then.
  void MakeRoom() {
    if (has_room()) return;
    const std::size_t capacity = static_cast<std::size_t>(limit_ - begin_);
    const bool move_down = size() <= capacity / 2 && capacity > 0;
    Cached* const to = move_down ? begin_ : std::allocator<Cached>().allocate(capacity * 2 + 1);
    Cached* end = to;
    for (Cached* from = oldest_; from != end_; ++from, ++end) {  // moving down, the two halves do not overlap
      ::new (static_cast<void*>(end)) Cached(std::move(*from));
      std::destroy_at(from);
    }
    if (!move_down) {
      std::allocator<Cached>().deallocate(begin_, capacity);
      begin_ = to;
      limit_ = to + capacity * 2 + 1;
    }
    oldest_ = to;
    end_ = end;
  }

  // Where there is room.
  void Push(AnyBuf&& buf, Priority priority) { ::new (static_cast<void*>(end_++)) Cached{std::move(buf), priority}; }
  // The handle of `buf`, which copies_as_bytes.
  void PushBytes(const AnyBuf& buf, Priority priority) {
    ::new (static_cast<void*>(end_++)) Cached{AnyBuf(buf, buf.nbytes()), priority};
  }

  // Where there is one.
  AnyBuf PopNewest() {
    AnyBuf out(std::move(newest().buf));
    std::destroy_at(--end_);
    return out;
  }
  AnyBuf PopOldest() {
    AnyBuf out(std::move(oldest().buf));
    std::destroy_at(oldest_++);
    return out;
  }
  // The newest, which copies_as_bytes; it stays readable until the next push.
  const AnyBuf& DropNewestBytes() { return (--end_)->buf; }

 private:
  void Swap(BufferStack& other) noexcept {
    std::swap(begin_, other.begin_);
    std::swap(oldest_, other.oldest_);
    std::swap(end_, other.end_);
    std::swap(limit_, other.limit_);
  }

  Cached* begin_ = nullptr;
  Cached* oldest_ = nullptr;
  Cached* end_ = nullptr;
  Cached* limit_ = nullptr;
};

}  // namespace packalloc

#endif  // PACKALLOC_LIB_LAYERS_BUFFER_STACK_H_
