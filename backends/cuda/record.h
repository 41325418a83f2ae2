// What all copies of one CUDA record share: the context, the stream, the staging ring, and what the driver was asked
// for.
#ifndef PACKALLOC_BACKENDS_CUDA_RECORD_H_
#define PACKALLOC_BACKENDS_CUDA_RECORD_H_

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "backends/cuda/context.h"
#include "backends/cuda/driver.h"
#include "backends/cuda/staging.h"
#include "packalloc/allocator.h"
#include "packalloc/backends/cuda.h"
#include "packalloc/buffer_spec.h"

namespace packalloc::internal {

// Of whatever the driver allocates, by the CUDA programming guide; more is made from it.
inline constexpr std::size_t kCudaAlignment = 256;

class CudaRecord final : public CudaNative {
 public:
  static absl::StatusOr<std::shared_ptr<CudaRecord>> Open(const CudaOptions& options);
  // The record whose buffers carry that stream_id, or null if it is gone.
  static std::shared_ptr<CudaRecord> Find(std::uint32_t stream_id);

  // For Open.
  CudaRecord(std::shared_ptr<CudaContext> context, CUstream stream, bool owns_stream, const CudaOptions& options);
  ~CudaRecord() override;

  // memory.cc
  absl::StatusOr<CudaBuf> Alloc(std::size_t nbytes, const BufferSpec& spec);
  absl::Status Free(const CudaBuf& buf, std::size_t nbytes, const BufferSpec& spec);
  absl::StatusOr<std::byte*> HostPtr(const CudaBuf& buf) const;
  absl::StatusOr<MemoryInfo> Info();
  absl::Status Synchronize();
  // copy.cc
  absl::Status CopyIn(const CudaBuf& dest, absl::Span<const std::byte> src);
  absl::Status CopyOut(absl::Span<std::byte> dest, const CudaBuf& src);
  // load.cc
  absl::Status CopyFromDisk(const CudaBuf& dest, const DiskExtent& src, std::size_t nbytes);
  // transfer.cc
  absl::Status Transfer(const CudaBuf& dest, const CudaBuf& src, std::size_t nbytes);

  int device() const override { return context_->ordinal(); }
  CUcontext context() const override { return context_->handle(); }
  CUstream stream() const override { return stream_; }
  CudaStats stats() const override;

  CudaContext& cuda_context() const { return *context_; }
  const CudaDriver& driver() const { return context_->driver(); }
  const std::string& name() const { return context_->name(); }
  StagingRing& ring() { return ring_; }
  std::size_t staging_chunk_bytes() const { return chunk_bytes_; }

  // The functions below need the context current.
  // The status of a driver call on so many bytes.
  absl::Status Check(CUresult result, absl::string_view call, std::size_t nbytes = 0) {
    return context_->Check(result, call, nbytes);
  }
  absl::StatusOr<bool> IsCapturing();
  // FAILED_PRECONDITION while the stream is captured into a graph.
  absl::Status NotCapturing(absl::string_view operation);
  absl::Status Drain() { return DrainStream(*context_, stream_); }
  // Host memory to the device, chunk by chunk through the ring, or straight where nothing can be page-locked. `src` is
  // consumed on return. Not during a capture.
  absl::Status Upload(CUdeviceptr dest, absl::Span<const std::byte> src);

 private:
  // A block as the driver gave it.
  struct Block {
    CUdeviceptr base = 0;
    std::size_t nbytes = 0;
    CudaMemory kind = CudaMemory::kDevice;
  };

  absl::StatusOr<CudaBuf> Wrap(std::size_t nbytes, const BufferSpec& spec);
  absl::StatusOr<Block> NewBlock(CudaMemory kind, std::size_t nbytes, const BufferSpec& spec);
  absl::StatusOr<Block> NewPooledBlock(std::size_t nbytes);
  absl::Status LetGo();
  absl::Status ReleaseBlock(const Block& block);
  void ReleaseDeferred();
  Block BlockOf(const CudaBuf& buf) const;
  void Forget(const CudaBuf& buf, const Block& block);
  absl::Status Fill(const CudaBuf& buf);

  const std::shared_ptr<CudaContext> context_;
  const CUstream stream_;
  const bool owns_stream_;
  const CudaAllocation allocation_;
  const std::uint32_t id_;
  const std::size_t chunk_bytes_;
  StagingRing ring_;

  std::atomic<std::size_t> pinned_bytes_{0};
  std::atomic<std::size_t> pinned_buffers_{0};

  mutable std::mutex mutex_;  // of all below; never held during a driver call
  // Buffers that had to be aligned inside a larger block, by their address.
  absl::flat_hash_map<CUdeviceptr, Block> aligned_inside_;
  std::vector<Block> deferred_;  // freed during a capture
};

}  // namespace packalloc::internal

#endif  // PACKALLOC_BACKENDS_CUDA_RECORD_H_
