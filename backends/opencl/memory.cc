// alloc, free, sub-buffers and the wrapping of the caller's buffer objects.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "backends/opencl/api.h"
#include "backends/opencl/context.h"
#include "backends/opencl/error.h"
#include "backends/opencl/queue.h"
#include "lib/checks.h"
#include "packalloc/backends/opencl.h"
#include "packalloc/buffer_spec.h"

namespace packalloc::opencl {
namespace {

absl::Status CheckSpec(const BufferSpec& spec, const std::string& name, std::size_t device_alignment) {
  if (spec.uncached) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": OpenCL has no memory that is promised to be uncached"));
  }
  if (spec.alignment > device_alignment) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": alignment ", spec.alignment,
                                                   " was asked for, but the device's buffers are aligned to ",
                                                   device_alignment, " bytes"));
  }
  return absl::OkStatus();
}

absl::Status FreedMeanwhile(const char* operation) {
  return absl::InvalidArgumentError(absl::StrCat(operation, ": the buffer was freed meanwhile"));
}

void ReleaseMem(const Api& cl, cl_mem mem) {
  Release([release = cl.clReleaseMemObject, mem] { return release(mem); });
}

}  // namespace

absl::StatusOr<OpenClBuf> Queue::Alloc(std::size_t nbytes, const BufferSpec& spec) {
  if (absl::Status valid = CheckRequest(name_, nbytes, spec); !valid.ok()) return valid;
  if (absl::Status valid = CheckSpec(spec, name_, device_.alignment); !valid.ok()) return valid;
  if (nbytes > device_.max_alloc_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("alloc of ", nbytes, " bytes: the largest single allocation of ",
                                                     name_, " (", device_.name, ") is ", device_.max_alloc_bytes,
                                                     " bytes"));
  }
  if (nbytes == 0) return OpenClBuf{};
  if (absl::Status ready = CheckReady(); !ready.ok()) return ready;
  ReleaseKept();

  cl_mem_flags flags = CL_MEM_READ_WRITE;
  auto* host = reinterpret_cast<std::byte*>(spec.external_ptr.value_or(0));
  if (host != nullptr) {
    flags |= CL_MEM_USE_HOST_PTR;  // which is host memory, so it grants `host` and `cpu_access`
  } else if (spec.host || spec.cpu_access) {
    flags |= CL_MEM_ALLOC_HOST_PTR;
  }
  cl_int code = CL_SUCCESS;
  cl_mem mem = cl_.clCreateBuffer(context_->handle(), flags, nbytes, host, &code);
  if (code != CL_SUCCESS) return Result(code, absl::StrCat("clCreateBuffer of ", nbytes, " bytes"));
  absl::Status status;
  if (!context_->Add(
          mem, Root{weak_from_this(), this, nbytes, host, host != nullptr || spec.host || spec.cpu_access, host})) {
    ReleaseMem(cl_, mem);
    return absl::InternalError(absl::StrCat(
        name_, ": a new buffer object has the handle of a live one; somebody released a buffer's root once too often"));
  }
  status = Prepare(mem, nbytes, spec);
  if (!status.ok()) {
    context_->Remove(mem);
    ReleaseMem(cl_, mem);
    return status;
  }
  return OpenClBuf{mem, 0, nbytes};
}

absl::Status Queue::Free(const OpenClBuf& buf, std::size_t nbytes, const BufferSpec& spec) {
  if (buf.root == nullptr && nbytes == 0) return absl::OkStatus();
  if (IsExiting()) return absl::OkStatus();
  if (absl::Status usable = CheckUsable(); !usable.ok()) return usable;
  absl::StatusOr<Root> root = CheckOwned(buf, "free");
  if (!root.ok()) return root.status();
  if (buf.offset != 0 || buf.nbytes != root->nbytes) {
    return absl::InvalidArgumentError("free: the buffer is a view; free the buffer that it was made from");
  }
  if (absl::Status same = CheckFreeSize(name_, nbytes, root->nbytes); !same.ok()) return same;
  if (reinterpret_cast<std::uintptr_t>(root->host) != spec.external_ptr.value_or(0)) {
    return absl::InvalidArgumentError("free with another external_ptr than the buffer was allocated with");
  }
  if (root->host != nullptr && !lost_) {
    if (!context_->Claim(buf.root, this)) return FreedMeanwhile("free");
    absl::Status written = WriteBack(buf.root, nbytes);
    if (!written.ok() && !lost_) {
      context_->Unclaim(buf.root);
      return written;
    }
  }
  std::optional<std::vector<cl_mem>> sub_buffers = context_->Remove(buf.root);
  if (!sub_buffers.has_value()) return FreedMeanwhile("free");
  for (cl_mem sub_buffer : *sub_buffers) ReleaseMem(cl_, sub_buffer);
  ReleaseMem(cl_, buf.root);
  return absl::OkStatus();
}

absl::StatusOr<std::byte*> Queue::HostPtr(const OpenClBuf& buf) {
  if (buf.nbytes == 0) return nullptr;
  if (absl::Status ready = CheckReady(); !ready.ok()) return ready;
  absl::StatusOr<Root> root = CheckOwned(buf, "host_ptr");
  if (!root.ok()) return root.status();
  if (!root->host_memory) {
    return absl::FailedPreconditionError(absl::StrCat(
        name_, ": the buffer is not host memory; ask for `host` or `cpu_access`, or use copyin and copyout"));
  }
  if (!device_.shares_host_memory) {
    return absl::FailedPreconditionError(
        absl::StrCat(name_, ": ", device_.name,
                     " has memory of its own, so there is no pointer to it that lasts; use copyin and copyout"));
  }
  if (root->mapped == nullptr) {
    // The device has no memory of its own, so the buffer's bytes stay where they are first mapped.
    if (!context_->Claim(buf.root, this)) return FreedMeanwhile("host_ptr");
    absl::StatusOr<std::byte*> mapped = MapOnce(buf.root, 0, root->nbytes);
    if (mapped.ok()) context_->SetMapped(buf.root, *mapped);
    context_->Unclaim(buf.root);
    if (!mapped.ok()) return mapped.status();
    root->mapped = *mapped;
  }
  return root->mapped + buf.offset;
}

absl::StatusOr<cl_mem> Queue::SubBuffer(const OpenClBuf& buf) {
  if (buf.nbytes == 0) return absl::InvalidArgumentError("SubBuffer: OpenCL has no buffer object of zero bytes");
  if (absl::Status ready = CheckReady(); !ready.ok()) return ready;
  absl::StatusOr<Root> root = CheckOwned(buf, "SubBuffer");
  if (!root.ok()) return root.status();
  if (buf.offset % device_.alignment != 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "SubBuffer: the byte offset ", buf.offset, " is not a multiple of ", device_.alignment, ", the alignment that ",
        name_, " (", device_.name, ") needs; pass the kernel the root and the offset instead"));
  }
  cl_mem mem = buf.root;
  if (buf.nbytes != root->nbytes) {
    mem = context_->FindSubBuffer(buf.root, buf.offset, buf.nbytes);
    if (mem == nullptr) {
      const cl_buffer_region region = {buf.offset, buf.nbytes};
      cl_int code = CL_SUCCESS;
      cl_mem made = cl_.clCreateSubBuffer(buf.root, 0, CL_BUFFER_CREATE_TYPE_REGION, &region, &code);
      if (code != CL_SUCCESS) return Result(code, "clCreateSubBuffer");
      mem = context_->AddSubBuffer(buf.root, buf.offset, buf.nbytes, made);
      if (mem != made) ReleaseMem(cl_, made);
      if (mem == nullptr) return FreedMeanwhile("SubBuffer");
    }
  }
  absl::Status retained = Result(cl_.clRetainMemObject(mem), "clRetainMemObject");
  if (!retained.ok()) return retained;
  return mem;
}

absl::StatusOr<OpenClBuf> Queue::Wrap(cl_mem mem) {
  constexpr char kCall[] = "clGetMemObjectInfo";
  if (mem == nullptr) return absl::InvalidArgumentError("Wrap: the buffer object is null");
  if (absl::Status ready = CheckReady(); !ready.ok()) return ready;
  const auto get = cl_.clGetMemObjectInfo;
  const auto type = GetInfo<cl_mem_object_type>(get, mem, CL_MEM_TYPE, kCall);
  if (!type.ok()) return type.status();
  const auto context = GetInfo<cl_context>(get, mem, CL_MEM_CONTEXT, kCall);
  if (!context.ok()) return context.status();
  const auto parent = GetInfo<cl_mem>(get, mem, CL_MEM_ASSOCIATED_MEMOBJECT, kCall);
  if (!parent.ok()) return parent.status();
  const auto nbytes = GetInfo<std::size_t>(get, mem, CL_MEM_SIZE, kCall);
  if (!nbytes.ok()) return nbytes.status();
  if (*type != CL_MEM_OBJECT_BUFFER) return absl::InvalidArgumentError("Wrap: the memory object is no buffer");
  if (*context != context_->handle()) {
    return absl::InvalidArgumentError(absl::StrCat("Wrap: the buffer object is of another context than ", name_));
  }
  if (*parent != nullptr) {
    return absl::InvalidArgumentError("Wrap: the buffer object is a sub-buffer; wrap its parent and make a view");
  }
  absl::Status retained = Result(cl_.clRetainMemObject(mem), "clRetainMemObject");
  if (!retained.ok()) return retained;
  if (!context_->Add(mem, Root{weak_from_this(), this, *nbytes, nullptr, false, nullptr})) {
    ReleaseMem(cl_, mem);
    return absl::AlreadyExistsError("Wrap: the buffer object is known already; make views of the buffer that has it");
  }
  return OpenClBuf{mem, 0, *nbytes};
}

}  // namespace packalloc::opencl
