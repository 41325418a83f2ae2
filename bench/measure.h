// Ratios of two times, measured so that a machine that drifts or is shared does not decide them: both sides take turns
// in one run, each round gives one ratio, and the median of the rounds is the answer.
//
//   double r = MedianRatio({.rounds = 31}, [&] { Pairs(packed, 20000); }, [&] { Pairs(record, 20000); });
#ifndef PACKALLOC_BENCH_MEASURE_H_
#define PACKALLOC_BENCH_MEASURE_H_

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <utility>
#include <vector>

namespace packalloc::bench {

inline double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Seconds that this thread computes for during `work`: waiting for a processor that others have does not count.
template <typename Work>
double Seconds(Work&& work) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double start = now();
  work();
  return now() - start;
}

// Seconds that pass during `work`, for what several threads do at a time.
template <typename Work>
double WallSeconds(Work&& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct RatioOptions {
  int rounds = 31;
};

// Median over rounds of `numerator`'s time over `denominator`'s; who goes first alternates. Each is a callable that
// returns the seconds it took, so that it may leave its own preparation out. One round before is not counted.
template <typename Numerator, typename Denominator>
double MedianRatioOfTimes(const RatioOptions& options, Numerator&& numerator, Denominator&& denominator) {
  std::vector<double> ratios;
  for (int round = -1; round < options.rounds; ++round) {
    double above = 0;
    double below = 0;
    if (round % 2 == 0) above = numerator();
    below = denominator();
    if (round % 2 != 0) above = numerator();
    if (round >= 0) ratios.push_back(above / below);
  }
  return Median(std::move(ratios));
}

template <typename Numerator, typename Denominator>
double MedianRatio(const RatioOptions& options, Numerator&& numerator, Denominator&& denominator) {
  return MedianRatioOfTimes(
      options, [&] { return Seconds(numerator); }, [&] { return Seconds(denominator); });
}

}  // namespace packalloc::bench

#endif  // PACKALLOC_BENCH_MEASURE_H_
