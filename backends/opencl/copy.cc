// copyin, copyout, transfer, fills and synchronize: everything that is enqueued.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "backends/opencl/api.h"
#include "backends/opencl/context.h"
#include "backends/opencl/error.h"
#include "backends/opencl/queue.h"
#include "lib/checked_math.h"
#include "lib/checks.h"
#include "lib/disk/stream.h"
#include "packalloc/backends/opencl.h"
#include "packalloc/buffer_spec.h"
#include "packalloc/disk_file.h"

namespace packalloc::opencl {
namespace {

constexpr std::size_t kBounceBytes = std::size_t{8} << 20;

// Calls `piece(begin, nbytes)` for each part of [0, nbytes) of at most `most` bytes, until one fails.
template <typename F>
absl::Status InPieces(std::size_t nbytes, std::size_t most, F&& piece) {
  for (std::size_t begin = 0; begin < nbytes; begin += most) {
    const std::size_t some = std::min(most, nbytes - begin);
    if (absl::Status status = piece(begin, some); !status.ok()) return status;
    if (some == nbytes - begin) break;  // so that `begin` cannot wrap
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Queue::Barrier() {
  if (!out_of_order_) return absl::OkStatus();
  return Result(cl_.clEnqueueBarrierWithWaitList(queue_, 0, nullptr, nullptr), "clEnqueueBarrierWithWaitList");
}

absl::Status Queue::CopyIn(const OpenClBuf& dest, absl::Span<const std::byte> src) {
  if (absl::Status fits = CheckCopy(name_, src.size(), dest.nbytes); !fits.ok()) return fits;
  if (src.empty()) return absl::OkStatus();
  if (absl::Status ready = CheckReady(); !ready.ok()) return ready;
  if (absl::StatusOr<Root> root = CheckOwned(dest, "copyin"); !root.ok()) return root.status();
  if (absl::Status status = Barrier(); !status.ok()) return status;
  // Blocking: drivers read the source of a non-blocking write long after the call.
  return InPieces(src.size(), max_copy_bytes_, [&](std::size_t begin, std::size_t nbytes) {
    return Result(cl_.clEnqueueWriteBuffer(queue_, dest.root, CL_TRUE, dest.offset + begin, nbytes, src.data() + begin,
                                           0, nullptr, nullptr),
                  "clEnqueueWriteBuffer");
  });
}

absl::Status Queue::CopyOut(absl::Span<std::byte> dest, const OpenClBuf& src) {
  if (absl::Status fits = CheckCopy(name_, dest.size(), src.nbytes); !fits.ok()) return fits;
  if (dest.empty()) return absl::OkStatus();
  if (absl::Status ready = CheckReady(); !ready.ok()) return ready;
  if (absl::StatusOr<Root> root = CheckOwned(src, "copyout"); !root.ok()) return root.status();
  if (absl::Status status = Barrier(); !status.ok()) return status;
  return InPieces(dest.size(), max_copy_bytes_, [&](std::size_t begin, std::size_t nbytes) {
    return Result(cl_.clEnqueueReadBuffer(queue_, src.root, CL_TRUE, src.offset + begin, nbytes, dest.data() + begin, 0,
                                          nullptr, nullptr),
                  "clEnqueueReadBuffer");
  });
}

// Read into staging slots, several at a time, and written from them while the next ones fill.
absl::Status Queue::CopyFromDisk(const OpenClBuf& dest, const DiskExtent& src, std::size_t nbytes) {
  if (absl::Status fits = CheckCopy(name_, nbytes, dest.nbytes); !fits.ok()) return fits;
  if (absl::Status fits = CheckExtent(src, nbytes); !fits.ok()) return fits;
  const StreamTarget target{.file = src.file.get(), .offset = src.offset, .nbytes = nbytes};
  StreamOptions options{.staging_bytes = src.file->options().staging_bytes};
  options.deliver = [&](std::size_t, std::size_t at, absl::Span<const std::byte> bytes, std::size_t) {
    return CopyIn(OpenClBuf{dest.root, dest.offset + at, bytes.size()}, bytes);
  };
  return StreamFromDisk(absl::MakeConstSpan(&target, 1), options);
}

absl::Status Queue::Copy(cl_mem dest, std::size_t dest_offset, cl_mem src, std::size_t src_offset, std::size_t nbytes) {
  return Result(cl_.clEnqueueCopyBuffer(queue_, src, dest, src_offset, dest_offset, nbytes, 0, nullptr, nullptr),
                "clEnqueueCopyBuffer");
}

// Drivers refuse overlapping ranges, or copy them wrongly, so those go through memory of our own, piece by piece in the
// direction in which no piece is overwritten before it is read.
absl::Status Queue::Move(const OpenClBuf& dest, const OpenClBuf& src, std::size_t nbytes, bool overlap,
                         bool backwards) {
  if (!overlap) {
    return InPieces(nbytes, max_copy_bytes_, [&](std::size_t begin, std::size_t some) {
      return Copy(dest.root, dest.offset + begin, src.root, src.offset + begin, some);
    });
  }
  const std::size_t step = std::min({nbytes, max_copy_bytes_, kBounceBytes});
  cl_int code = CL_SUCCESS;
  cl_mem bounce = cl_.clCreateBuffer(context_->handle(), CL_MEM_READ_WRITE, step, nullptr, &code);
  if (code != CL_SUCCESS)
    return Result(code, absl::StrCat("clCreateBuffer of ", step, " bytes for an overlapping copy"));
  absl::Status status = InPieces(nbytes, step, [&](std::size_t begin, std::size_t some) {
    const std::size_t at = backwards ? nbytes - begin - some : begin;
    absl::Status moved = Copy(bounce, 0, src.root, src.offset + at, some);
    if (moved.ok()) moved = Barrier();
    if (moved.ok()) moved = Copy(dest.root, dest.offset + at, bounce, 0, some);
    if (moved.ok()) moved = Barrier();
    return moved;
  });
  Release([release = cl_.clReleaseMemObject, bounce] { return release(bounce); });  // safe while it is in use
  return status;
}

std::vector<std::shared_ptr<Queue>> Queue::OthersOn(const Root& dest, const Root& src) const {
  std::vector<std::shared_ptr<Queue>> others;
  for (const Root* root : {&dest, &src}) {
    std::shared_ptr<Queue> owner = root->owner.lock();
    if (owner == nullptr || owner->queue_ == queue_) continue;
    if (!others.empty() && others.front()->queue_ == owner->queue_) continue;
    others.push_back(std::move(owner));
  }
  return others;
}

absl::Status Queue::Transfer(const OpenClBuf& dest, const OpenClBuf& src, std::size_t nbytes) {
  for (const OpenClBuf* buf : {&dest, &src}) {
    if (absl::Status fits = CheckCopy(name_, nbytes, buf->nbytes); !fits.ok()) return fits;
  }
  if (nbytes == 0) return absl::OkStatus();
  if (absl::Status ready = CheckReady(); !ready.ok()) return ready;
  const std::optional<Root> to = context_->Find(dest.root);
  const std::optional<Root> from = context_->Find(src.root);
  if (!to.has_value() || !from.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("transfer: the ", to.has_value() ? "source" : "destination",
                                                   " is no live buffer of ", name_, "'s context"));
  }
  if (!InRange(dest.offset, nbytes, to->nbytes) || !InRange(src.offset, nbytes, from->nbytes)) {
    return absl::OutOfRangeError("transfer: a range lies outside its buffer object");
  }

  // Where the two ranges lie, in one space for one buffer object and for two over the same caller's memory.
  const bool same_root = dest.root == src.root;
  const bool both_host = to->host != nullptr && from->host != nullptr;
  const auto at = [same_root](const Root& root, std::size_t offset) {
    return same_root ? offset : reinterpret_cast<std::uintptr_t>(root.host) + offset;
  };
  const std::uintptr_t dest_at = at(*to, dest.offset);
  const std::uintptr_t src_at = at(*from, src.offset);
  const bool one_space = same_root || both_host;
  if (one_space && dest_at == src_at) return absl::OkStatus();
  const bool backwards = one_space && dest_at > src_at;
  const bool overlap = one_space && (backwards ? dest_at - src_at : src_at - dest_at) < nbytes;

  const std::vector<std::shared_ptr<Queue>> others = OthersOn(*to, *from);
  // By waiting here, not by events of the other queue: some drivers (PoCL's "basic") deadlock on those.
  absl::Status status;
  for (const std::shared_ptr<Queue>& other : others) {
    if (status.ok()) status = other->Result(cl_.clFinish(other->queue_), "clFinish before a transfer");
  }
  if (status.ok()) status = Barrier();
  if (!status.ok()) return status;
  status = Move(dest, src, nbytes, overlap, backwards);
  if (status.ok()) status = Barrier();
  if (status.ok() && others.empty()) return Result(cl_.clFlush(queue_), "clFlush");
  if (status.ok()) return Result(cl_.clFinish(queue_), "clFinish after a transfer");
  // What was enqueued before an error must not run beside what comes after it.
  if (!lost_) Result(cl_.clFinish(queue_), "clFinish").IgnoreError();
  return status;
}

absl::Status Queue::Prepare(cl_mem mem, std::size_t nbytes, const BufferSpec& spec) {
  if (!spec.zero && (!commit_ || spec.external_ptr.has_value())) return absl::OkStatus();
  absl::Status status = Barrier();
  if (status.ok() && spec.zero) {
    status = InPieces(nbytes, max_copy_bytes_, [&](std::size_t begin, std::size_t some) {
      // The largest pattern that divides both, for some drivers fill one pattern at a time.
      constexpr std::size_t kLargest = 128;
      static constexpr std::byte kZeros[kLargest] = {};
      const std::size_t together = begin | some | kLargest;
      const std::size_t pattern = together & (~together + 1);
      return Result(cl_.clEnqueueFillBuffer(queue_, mem, kZeros, pattern, begin, some, 0, nullptr, nullptr),
                    "clEnqueueFillBuffer");
    });
  } else if (status.ok()) {
    status = Result(
        cl_.clEnqueueMigrateMemObjects(queue_, 1, &mem, CL_MIGRATE_MEM_OBJECT_CONTENT_UNDEFINED, 0, nullptr, nullptr),
        absl::StrCat("clEnqueueMigrateMemObjects of a new buffer of ", nbytes, " bytes"));
  }
  return status.ok() ? Barrier() : status;
}

absl::StatusOr<std::byte*> Queue::MapOnce(cl_mem mem, std::size_t begin, std::size_t nbytes) {
  if (absl::Status status = Barrier(); !status.ok()) return status;
  // Mapped for writing, memory of the device's own would get back what the CPU has, which costs and changes nothing.
  const cl_map_flags flags = device_.shares_host_memory ? CL_MAP_READ | CL_MAP_WRITE : CL_MAP_READ;
  cl_int code = CL_SUCCESS;
  void* mapped = cl_.clEnqueueMapBuffer(queue_, mem, CL_TRUE, flags, begin, nbytes, 0, nullptr, nullptr, &code);
  if (code != CL_SUCCESS) return Result(code, "clEnqueueMapBuffer");
  code = cl_.clEnqueueUnmapMemObject(queue_, mem, mapped, 0, nullptr, nullptr);
  // Tried once more, or the driver would keep the mapping as long as it lives; the caller hears of the first error.
  if (code != CL_SUCCESS) cl_.clEnqueueUnmapMemObject(queue_, mem, mapped, 0, nullptr, nullptr);
  absl::Status status = Result(code, "clEnqueueUnmapMemObject");
  if (status.ok()) status = Result(cl_.clFinish(queue_), "clFinish after a mapping");
  if (!status.ok()) return status;
  return static_cast<std::byte*>(mapped);
}

absl::Status Queue::WriteBack(cl_mem mem, std::size_t nbytes) {
  return InPieces(nbytes, max_copy_bytes_,
                  [&](std::size_t begin, std::size_t some) { return MapOnce(mem, begin, some).status(); });
}

absl::Status Queue::Synchronize() {
  if (absl::Status ready = CheckReady(); !ready.ok()) return ready;
  ReleaseKept();
  absl::Status status;
  for (cl_mem mem : context_->ListMapped(this)) {
    const std::optional<Root> root = context_->Claim(mem, this);
    if (!root.has_value()) continue;  // freed meanwhile
    if (status.ok()) status = WriteBack(mem, root->nbytes);
    context_->Unclaim(mem);
  }
  if (status.ok()) status = Result(cl_.clFinish(queue_), "clFinish");
  return status;
}

}  // namespace packalloc::opencl
