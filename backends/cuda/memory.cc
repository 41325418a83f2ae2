// What CudaRecord asks the driver to allocate and gives back.
#include <cuda.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "backends/cuda/context.h"
#include "backends/cuda/driver.h"
#include "backends/cuda/error.h"
#include "backends/cuda/record.h"
#include "lib/checked_math.h"
#include "lib/checks.h"
#include "packalloc/allocator.h"
#include "packalloc/backends/cuda.h"
#include "packalloc/buffer_spec.h"

namespace packalloc::internal {
namespace {

CudaMemory KindOf(const BufferSpec& spec) {
  if (spec.host) return CudaMemory::kPinned;
  return spec.cpu_access ? CudaMemory::kManaged : CudaMemory::kDevice;
}

const char* AllocationCall(CudaMemory kind) {
  switch (kind) {
    case CudaMemory::kPinned:
      return "cuMemHostAlloc";
    case CudaMemory::kManaged:
      return "cuMemAllocManaged";
    case CudaMemory::kDevice:
      break;
  }
  return "cuMemAlloc_v2";
}

absl::Status CheckUncached(const std::string& name, const BufferSpec& spec) {
  if (!spec.uncached || (!spec.cpu_access && !spec.host)) return absl::OkStatus();
  if (spec.host && !spec.external_ptr.has_value()) return absl::OkStatus();  // write-combined
  return absl::InvalidArgumentError(absl::StrCat(
      name, ": ", ToString(spec), ": memory that the CPU can read and does not cache is to be had as {host uncached}, ",
      "newly allocated, only"));
}

}  // namespace

absl::StatusOr<CudaBuf> CudaRecord::Alloc(std::size_t nbytes, const BufferSpec& spec) {
  if (absl::Status valid = CheckRequest(name(), nbytes, spec); !valid.ok()) return valid;
  if (absl::Status valid = CheckUncached(name(), spec); !valid.ok()) return valid;
  const CudaMemory kind = KindOf(spec);
  CudaBuf buf{0, nbytes, id_, static_cast<std::int16_t>(device()), kind};
  if (nbytes == 0) return buf;
  if (spec.external_ptr.has_value()) return Wrap(nbytes, spec);

  const ScopedContext scope(*context_);
  if (!scope.status().ok()) return scope.status();
  if (absl::Status allowed = NotCapturing("allocating memory of the driver"); !allowed.ok()) return allowed;
  ReleaseDeferred();

  // A block that is large enough to be aligned inside is the last resort: it wastes memory, and the block must be
  // remembered. Most are aligned as they come.
  const std::size_t alignment = std::max(spec.alignment, kCudaAlignment);
  std::size_t padding = alignment > kCudaAlignment ? alignment : 0;
  Block block;
  for (;;) {
    absl::StatusOr<Block> made = NewBlock(kind, nbytes + padding, spec);  // at most PTRDIFF_MAX + 1 GiB
    if (!made.ok()) return made.status();
    block = *made;
    if (padding != 0 || block.base % alignment == 0) break;
    if (absl::Status released = ReleaseBlock(block); !released.ok()) return released;
    padding = alignment;
  }
  buf.ptr = block.base;
  if (padding != 0) buf.ptr += -block.base & (alignment - 1);

  if (spec.zero) {
    if (absl::Status filled = Fill(buf); !filled.ok()) {
      static_cast<void>(ReleaseBlock(block));
      return filled;
    }
  }
  if (padding != 0) {
    const std::lock_guard<std::mutex> lock(mutex_);
    aligned_inside_[buf.ptr] = block;
  }
  if (kind == CudaMemory::kPinned) {
    pinned_bytes_.fetch_add(block.nbytes, std::memory_order_relaxed);
    pinned_buffers_.fetch_add(1, std::memory_order_relaxed);
  }
  return buf;
}

absl::StatusOr<CudaRecord::Block> CudaRecord::NewBlock(CudaMemory kind, std::size_t nbytes, const BufferSpec& spec) {
  if (kind == CudaMemory::kDevice && allocation_ == CudaAllocation::kStreamOrdered) return NewPooledBlock(nbytes);
  Block block{0, nbytes, kind};
  void* host = nullptr;
  CUresult result = CUDA_SUCCESS;
  switch (kind) {
    case CudaMemory::kPinned:
      result = driver().Call(driver().cuMemHostAlloc, &host, nbytes,
                             CU_MEMHOSTALLOC_PORTABLE | (spec.uncached ? CU_MEMHOSTALLOC_WRITECOMBINED : 0U));
      block.base = reinterpret_cast<CUdeviceptr>(host);
      break;
    case CudaMemory::kManaged:
      result =
          driver().Call(driver().cuMemAllocManaged, &block.base, nbytes, static_cast<unsigned>(CU_MEM_ATTACH_GLOBAL));
      break;
    case CudaMemory::kDevice:
      result = driver().Call(driver().cuMemAlloc_v2, &block.base, nbytes);
      break;
  }
  if (result == CUDA_SUCCESS) return block;
  absl::Status failed = Check(result, AllocationCall(kind), nbytes);
  if (result == CUDA_ERROR_NOT_SUPPORTED) {
    return absl::InvalidArgumentError(absl::StrCat(failed.message(), "; this device has no such memory"));
  }
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  if (result == CUDA_ERROR_OUT_OF_MEMORY && kind == CudaMemory::kDevice &&
      driver().Call(driver().cuMemGetInfo_v2, &free_bytes, &total_bytes) == CUDA_SUCCESS) {
    return absl::ResourceExhaustedError(
        absl::StrCat(failed.message(), "; ", free_bytes, " of ", total_bytes, " bytes are free"));
  }
  return failed;
}

absl::StatusOr<CudaRecord::Block> CudaRecord::NewPooledBlock(std::size_t nbytes) {
  Block block{0, nbytes, CudaMemory::kDevice};
  CUresult result = driver().Call(driver().cuMemAllocAsync, &block.base, nbytes, stream_);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    // What was freed on the stream may still be the pool's, in pieces that do not fit.
    CUmemoryPool pool = nullptr;
    if (Drain().ok() && driver().Call(driver().cuDeviceGetDefaultMemPool, &pool, context_->device()) == CUDA_SUCCESS &&
        driver().Call(driver().cuMemPoolTrimTo, pool, std::size_t{0}) == CUDA_SUCCESS) {
      result = driver().Call(driver().cuMemAllocAsync, &block.base, nbytes, stream_);
    }
  }
  if (result == CUDA_SUCCESS) return block;
  return Check(result, "cuMemAllocAsync", nbytes);
}

absl::Status CudaRecord::Fill(const CudaBuf& buf) {
  if (buf.kind == CudaMemory::kPinned) {
    std::memset(reinterpret_cast<void*>(buf.ptr), 0, buf.nbytes);
    return absl::OkStatus();
  }
  const auto zero = static_cast<unsigned char>(0);
  return Check(driver().Call(driver().cuMemsetD8Async, buf.ptr, zero, buf.nbytes, stream_), "cuMemsetD8Async",
               buf.nbytes);
}

absl::StatusOr<CudaBuf> CudaRecord::Wrap(std::size_t nbytes, const BufferSpec& spec) {
  const ScopedContext scope(*context_);
  if (!scope.status().ok()) return scope.status();
  const CUdeviceptr address = *spec.external_ptr;
  const auto refuse = [&](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat(name(), ": external_ptr 0x", absl::Hex(address), " of ", nbytes, " bytes ", why));
  };
  const auto ask = [&](void* answer, CUpointer_attribute attribute) {
    return driver().Call(driver().cuPointerGetAttribute, answer, attribute, address);
  };

  unsigned type = 0;
  const CUresult known = ask(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
  if (known == CUDA_ERROR_INVALID_VALUE) {
    return refuse("is not an address that CUDA knows; host memory must be page-locked first (cuMemHostRegister)");
  }
  if (absl::Status asked = Check(known, "cuPointerGetAttribute"); !asked.ok()) return asked;
  unsigned managed = 0;
  if (ask(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED) != CUDA_SUCCESS) managed = 0;
  CudaMemory kind = managed != 0                 ? CudaMemory::kManaged
                    : type == CU_MEMORYTYPE_HOST ? CudaMemory::kPinned
                                                 : CudaMemory::kDevice;
  if (spec.host && kind != CudaMemory::kPinned) return refuse("is not host memory, as {host} asks for");
  if (!spec.host && kind == CudaMemory::kPinned) return refuse("is page-locked host memory; ask for {host}");
  if (spec.cpu_access && kind == CudaMemory::kDevice) return refuse("is not memory that the CPU can reach");
  int ordinal = 0;
  if (kind == CudaMemory::kDevice && ask(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) == CUDA_SUCCESS &&
      ordinal != device()) {
    return refuse(absl::StrCat("is memory of CUDA:", ordinal));
  }
  CUdeviceptr start = 0;
  std::size_t range = 0;
  if (ask(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR) == CUDA_SUCCESS &&
      ask(&range, CU_POINTER_ATTRIBUTE_RANGE_SIZE) == CUDA_SUCCESS && start <= address &&
      !InRange<std::size_t>(address - start, nbytes, range)) {
    return refuse(absl::StrCat("passes the end of its allocation of ", range, " bytes"));
  }
  return CudaBuf{address, nbytes, id_, static_cast<std::int16_t>(device()), kind};
}

absl::Status CudaRecord::Free(const CudaBuf& buf, std::size_t nbytes, const BufferSpec& spec) {
  if (absl::Status same = CheckFreeSize(name(), nbytes, buf.nbytes); !same.ok()) return same;
  if (nbytes == 0) return absl::OkStatus();
  if (driver().forked()) return ForkedChild();
  if (buf.stream_id != id_) {
    return absl::InvalidArgumentError(absl::StrCat(name(), ": free of a buffer that another record allocated (",
                                                   buf.stream_id, ", this is ", id_, ")"));
  }
  if (spec.external_ptr.has_value()) return LetGo();

  const Block block = BlockOf(buf);
  absl::Status done = [&]() -> absl::Status {
    const ScopedContext scope(*context_);
    if (!scope.status().ok()) return scope.status();
    absl::StatusOr<bool> capturing = IsCapturing();
    if (!capturing.ok()) return capturing.status();
    if (*capturing) {
      const std::lock_guard<std::mutex> lock(mutex_);
      deferred_.push_back(block);
      return absl::OkStatus();
    }
    ReleaseDeferred();
    return ReleaseBlock(block);
  }();
  // The one call that loses the context tells so. Later ones, and all after the driver's end, have nothing to release.
  if (!done.ok() && !(context_->MemoryIsGone())) return done;
  Forget(buf, block);
  return absl::OkStatus();
}

// Once this returns, external memory is its owner's alone.
absl::Status CudaRecord::LetGo() {
  absl::Status done = [&]() -> absl::Status {
    const ScopedContext scope(*context_);
    if (!scope.status().ok()) return scope.status();
    absl::Status allowed = NotCapturing("free of external memory, which waits for the work on it,");
    return allowed.ok() ? Drain() : allowed;
  }();
  return context_->MemoryIsGone() ? absl::OkStatus() : done;
}

CudaRecord::Block CudaRecord::BlockOf(const CudaBuf& buf) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = aligned_inside_.find(buf.ptr);
  return it != aligned_inside_.end() ? it->second : Block{buf.ptr, buf.nbytes, buf.kind};
}

void CudaRecord::Forget(const CudaBuf& buf, const Block& block) {
  if (block.kind == CudaMemory::kPinned) {
    pinned_bytes_.fetch_sub(block.nbytes, std::memory_order_relaxed);
    pinned_buffers_.fetch_sub(1, std::memory_order_relaxed);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  aligned_inside_.erase(buf.ptr);
}

absl::Status CudaRecord::ReleaseBlock(const Block& block) {
  if (block.kind == CudaMemory::kDevice && allocation_ == CudaAllocation::kStreamOrdered) {
    return Check(driver().Call(driver().cuMemFreeAsync, block.base, stream_), "cuMemFreeAsync");
  }
  // cuMemFree may or may not wait for work that uses the block. After an error of the wait the work is done all the
  // same, unless the context is lost.
  static_cast<void>(Drain());
  if (absl::Status usable = context_->Usable(); !usable.ok()) return usable;
  if (block.kind == CudaMemory::kPinned) {
    return Check(driver().Call(driver().cuMemFreeHost, reinterpret_cast<void*>(block.base)), "cuMemFreeHost");
  }
  return Check(driver().Call(driver().cuMemFree_v2, block.base), "cuMemFree_v2");
}

void CudaRecord::ReleaseDeferred() {
  std::vector<Block> blocks;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    blocks.swap(deferred_);
  }
  for (const Block& block : blocks) {
    if (ReleaseBlock(block).ok() || context_->MemoryIsGone()) continue;
    const std::lock_guard<std::mutex> lock(mutex_);  // again next time
    deferred_.push_back(block);
  }
}

absl::StatusOr<std::byte*> CudaRecord::HostPtr(const CudaBuf& buf) const {
  if (driver().forked()) return ForkedChild();
  if (buf.nbytes == 0) return nullptr;
  if (buf.kind != CudaMemory::kDevice) return reinterpret_cast<std::byte*>(buf.ptr);
  return absl::FailedPreconditionError(absl::StrCat(
      name(), ": the CPU cannot reach device memory; allocate with {host} or {cpu_access}, or copy it out"));
}

absl::StatusOr<MemoryInfo> CudaRecord::Info() {
  const ScopedContext scope(*context_);
  if (!scope.status().ok()) return scope.status();
  MemoryInfo info;
  absl::Status asked =
      Check(driver().Call(driver().cuMemGetInfo_v2, &info.free_bytes, &info.total_bytes), "cuMemGetInfo_v2");
  if (!asked.ok()) return asked;
  return info;
}

absl::Status CudaRecord::Synchronize() {
  const ScopedContext scope(*context_);
  if (!scope.status().ok()) return scope.status();
  if (absl::Status allowed = NotCapturing("synchronize"); !allowed.ok()) return allowed;
  absl::Status drained = Drain();
  if (drained.ok()) ReleaseDeferred();
  return drained;
}

}  // namespace packalloc::internal
