// Linking count_news.cc into a test replaces operator new by one that counts.
#ifndef PACKALLOC_TEST_COUNT_NEWS_H_
#define PACKALLOC_TEST_COUNT_NEWS_H_

#include <cstddef>

namespace packalloc {

// Calls of operator new by this thread so far.
std::size_t CountNews();

}  // namespace packalloc

#endif  // PACKALLOC_TEST_COUNT_NEWS_H_
