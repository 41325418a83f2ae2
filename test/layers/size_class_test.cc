#include "lib/layers/size_class.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>

namespace packalloc {
namespace {

constexpr std::size_t kMost = std::numeric_limits<std::ptrdiff_t>::max();

TEST_CASE("without waste every size is its own class") {
  const SizeClasses exact(0, kMost);
  for (std::size_t n : {std::size_t{1}, std::size_t{255}, std::size_t{4097}, SIZE_MAX}) CHECK(exact.Of(n) == n);
}

TEST_CASE("rounding stays within the waste, never shrinks, and a class is its own class") {
  for (double waste : {1e-300, 1e-9, 0.01, 0.1, 0.125, 0.3, 0.5, 0.99, 1.0}) {
    CAPTURE(waste);
    const SizeClasses classes(waste, kMost);
    std::size_t last = 0;
    for (std::size_t n = 1; n < std::size_t{1} << 40; n += 1 + n / 37) {
      const std::size_t c = classes.Of(n);
      CHECK(c >= n);
      CHECK(static_cast<double>(c - n) <= std::max(waste * static_cast<double>(n), 255.0));
      CHECK(classes.Of(c) == c);
      CHECK(c >= last);
      last = c;
    }
  }
}

TEST_CASE("at an eighth there are eight classes between one power of two and the next") {
  const SizeClasses classes(0.125, kMost);
  CHECK(classes.Of(1) == 256);
  CHECK(classes.Of(1 << 20) == 1 << 20);
  CHECK(classes.Of((1 << 20) + 1) == (1 << 20) + (1 << 17));
}

TEST_CASE("a size whose class would be too large stays exact; one that wraps is none") {
  const SizeClasses classes(1, 2000);
  CHECK(classes.Of(600) == 1024);
  CHECK(classes.Of(1100) == 1100);
  const SizeClasses unbounded(1, SIZE_MAX);
  CHECK(unbounded.Of(SIZE_MAX) == 0);
  CHECK(unbounded.Of(SIZE_MAX - 510) == 0);
}

}  // namespace
}  // namespace packalloc
