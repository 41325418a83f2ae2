// What can be said of CUDA without a GPU: how much memory is page-locked. Over the strict fake driver, where the build
// has it.
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/bars.h"

#ifdef FAKE_CUDA_LIBRARY
#include "packalloc/backends/cuda.h"
#include "packalloc/disk_file.h"
#endif

namespace packalloc::bench {

Bar CudaPinnedStagingOverOption() {
  return {"cuda_pinned_staging_over_option",
          "page-locked bytes while 256 MiB go from disk to CUDA over what CudaOptions allows (fake driver)", 1.0,
          Bar::Kind::kAtMost, []() -> absl::StatusOr<double> {
#ifdef FAKE_CUDA_LIBRARY
            setenv("PACKALLOC_LIBCUDA", FAKE_CUDA_LIBRARY, 1);
            const CudaOptions options;
            absl::StatusOr<Allocator<CudaBuf>> cuda = CudaAllocator(options);
            if (!cuda.ok()) return cuda.status();
            constexpr std::size_t kBytes = std::size_t{256} << 20;
            std::string path = (std::filesystem::temp_directory_path() / "packalloc-bench-XXXXXX").string();
            const int fd = mkstemp(path.data());
            if (fd < 0) return absl::ErrnoToStatus(errno, path);
            close(fd);
            absl::StatusOr<std::shared_ptr<DiskFile>> file = DiskFile::Open(path, {.write = true});
            unlink(path.c_str());
            if (!file.ok()) return file.status();
            if (absl::Status grown = (*file)->GrowTo(kBytes); !grown.ok()) return grown;
            absl::StatusOr<CudaBuf> buf = cuda->alloc(kBytes, {});
            if (!buf.ok()) return buf.status();
            absl::Status loaded = cuda->copy_from_disk(*buf, {*file, 0, kBytes}, kBytes);
            // The ring only grows, so what it has now is its peak.
            const CudaStats stats = Find<CudaNative>(*cuda)->stats();
            loaded.Update(cuda->free(*buf, kBytes, {}));
            if (!loaded.ok()) return loaded;
            return static_cast<double>(stats.staging_bytes) /
                   static_cast<double>(options.staging_slots * options.staging_slot_bytes);
#else
            return absl::UnavailableError("the build has no fake CUDA driver");
#endif
          }};
}

}  // namespace packalloc::bench
