// The size classes of the cache: which size a request is rounded up to before it reaches the inner record.
#ifndef PACKALLOC_LIB_LAYERS_SIZE_CLASS_H_
#define PACKALLOC_LIB_LAYERS_SIZE_CLASS_H_

#include <algorithm>
#include <bit>
#include <cstddef>

namespace packalloc {

// With max_waste 0 every size is its own class. Else classes are the multiples of a step that is the same from one
// power of two to the next: the largest power of two within max_waste of the lower one, but at least 256 bytes. So a
// request grows by at most max(max_waste * nbytes, 255 bytes), and a class is its own class.
class SizeClasses {
 public:
  // `max_waste` from 0 to 1. Classes above `max_class` bytes do not exist: sizes that would reach one stay exact.
  SizeClasses(double max_waste, std::size_t max_class) : max_class_(max_class), exact_(max_waste == 0) {
    for (double part = 1; part > max_waste && shift_ < kBits; part /= 2) ++shift_;
  }

  // The class of `nbytes`, which is not 0; 0 where the rounding overflows. (Not an optional: written as 8 bytes and one
  // and read back as 16, that stalls the hot path.)
  std::size_t Of(std::size_t nbytes) const {
    if (exact_) return nbytes;
    const std::size_t step = std::max(shift_ < kBits ? std::bit_floor(nbytes) >> shift_ : 0, kSmallestStep);
    std::size_t rounded = 0;
    if (__builtin_add_overflow(nbytes, step - 1, &rounded)) return 0;
    rounded &= ~(step - 1);
    return rounded > max_class_ ? nbytes : rounded;
  }

 private:
  static constexpr std::size_t kSmallestStep = 256;
  static constexpr int kBits = 64;
  std::size_t max_class_;
  int shift_ = 0;  // the step is the power of two below the size, shifted right by this
  bool exact_;
};

}  // namespace packalloc

#endif  // PACKALLOC_LIB_LAYERS_SIZE_CLASS_H_
