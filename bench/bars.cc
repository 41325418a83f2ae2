#include "bench/bars.h"

#include <vector>

namespace packalloc::bench {

std::vector<Bar> Bars() {
  return {
      PackedOverRecord(),    LruHitOverMalloc(),       LruTwoThreadScaling(),    CpuFirstTouchOverMalloc(),
      CpuCopyOverMemcpy(),   OpenClCopyOverMemcpy(),   TensorPoolEmptyOverLru(), DiskColdOverBestRaw(),
      DiskWarmOverBestRaw(), DiskManyOverOne(),        DiskToOpenClOverCpu(),    CudaPinnedStagingOverOption(),
      StagedCopyOverSum(),   TvmFfiObjectOverMalloc(),
  };
}

}  // namespace packalloc::bench
