// Size arithmetic that cannot wrap. Every size sum, product and rounding of the library goes through here.
#ifndef PACKALLOC_LIB_CHECKED_MATH_H_
#define PACKALLOC_LIB_CHECKED_MATH_H_

#include <bit>
#include <concepts>
#include <cstddef>
#include <optional>

namespace packalloc {

constexpr bool IsPowerOfTwo(std::size_t n) { return std::has_single_bit(n); }

template <std::unsigned_integral T>
constexpr std::optional<T> CheckedAdd(T a, T b) {
  T sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

template <std::unsigned_integral T>
constexpr std::optional<T> CheckedMul(T a, T b) {
  T product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

// The smallest multiple of `step` (not 0) that is at least `n`.
template <std::unsigned_integral T>
constexpr std::optional<T> RoundUp(T n, T step) {
  const T rest = n % step;
  return rest == 0 ? std::optional<T>(n) : CheckedAdd<T>(n, step - rest);
}

// Whether bytes [offset, offset + nbytes) lie inside [0, size).
template <std::unsigned_integral T>
constexpr bool InRange(T offset, T nbytes, T size) {
  return offset <= size && nbytes <= size - offset;
}

}  // namespace packalloc

#endif  // PACKALLOC_LIB_CHECKED_MATH_H_
