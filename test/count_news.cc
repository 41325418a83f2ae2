#include "test/count_news.h"

#include <cstddef>
#include <cstdlib>
#include <new>

namespace packalloc {
namespace {
thread_local std::size_t news = 0;
}  // namespace

std::size_t CountNews() { return news; }

}  // namespace packalloc

void* operator new(std::size_t nbytes) {
  ++packalloc::news;
  if (void* block = std::malloc(nbytes)) return block;
  throw std::bad_alloc();
}
void operator delete(void* block) noexcept { std::free(block); }
void operator delete(void* block, std::size_t) noexcept { std::free(block); }
