// The bars that the library's speed is held to, each a ratio within one run. A new one is a function that returns a Bar
// (in a file of its own, or beside its like) and one line in Bars() of bars.cc.
#ifndef PACKALLOC_BENCH_BARS_H_
#define PACKALLOC_BENCH_BARS_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace packalloc::bench {

struct Bar {
  enum class Kind { kAtMost, kAtLeast };

  std::string name;
  std::string what;  // one line for people
  double bar = 0;
  Kind kind = Kind::kAtMost;
  // The ratio; an error with the reason where this machine cannot measure it.
  std::function<absl::StatusOr<double>()> measure;

  bool Met(double ratio) const { return kind == Kind::kAtMost ? ratio <= bar : ratio >= bar; }
};

// All of them, in the order in which they are shown.
std::vector<Bar> Bars();

Bar PackedOverRecord();
Bar LruHitOverMalloc();
Bar LruTwoThreadScaling();
Bar CpuFirstTouchOverMalloc();
Bar CpuCopyOverMemcpy();
Bar OpenClCopyOverMemcpy();
Bar TensorPoolEmptyOverLru();
Bar DiskColdOverBestRaw();
Bar DiskWarmOverBestRaw();
Bar DiskManyOverOne();
Bar DiskToOpenClOverCpu();
Bar StagedCopyOverSum();
Bar CudaPinnedStagingOverOption();
Bar TvmFfiObjectOverMalloc();

}  // namespace packalloc::bench

#endif  // PACKALLOC_BENCH_BARS_H_
