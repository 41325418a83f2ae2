#include "lib/interop/acl_memory.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/interop/acl_functions.h"
#include "lib/interop/acl_object.h"
#include "packalloc/backends/opencl.h"

namespace packalloc::internal {
namespace {

std::byte* At(const AclPlace& place) { return static_cast<std::byte*>(place.address) + place.byte_offset; }

// ---- copies by device address ----

class ByAddress final : public AclMemoryAccess {
 public:
  ByAddress(AclCopyFunctions functions, bool pointers) : functions_(std::move(functions)) {
    offset = address_is_pointer = pointers;  // nobody adds to a handle
    transfer = static_cast<bool>(functions_.transfer);
    synchronize = static_cast<bool>(functions_.synchronize);
    memory_domain = NewDomain();
  }

  absl::StatusOr<AclMemory> Reach(void*, std::size_t, void*, std::size_t) override { return AclMemory(); }
  absl::Status Copyin(const AclPlace& dest, absl::Span<const std::byte> src) override {
    return functions_.copyin(At(dest), src);
  }
  absl::Status Copyout(absl::Span<std::byte> dest, const AclPlace& src) override {
    return functions_.copyout(dest, At(src));
  }
  absl::Status Transfer(const AclPlace& dest, const AclPlace& src, std::size_t nbytes) override {
    return functions_.transfer(At(dest), At(src), nbytes);
  }
  absl::Status CopyFromDisk(const AclPlace&, const DiskExtent&, std::size_t) override { return Cannot(); }
  absl::StatusOr<std::byte*> HostPtr(const AclPlace&) override { return Cannot(); }
  absl::Status Synchronize() override { return functions_.synchronize(); }

 private:
  static absl::Status Cannot() { return absl::UnimplementedError("copies by device address cannot"); }
  const AclCopyFunctions functions_;
};

// ---- the runtime's copies, as such functions ----

enum Kind { kHostToDevice = 1, kDeviceToHost = 2, kDeviceToDevice = 3 };

struct Runtime {
  AclFunctions acl;
  void* stream;
  bool pointers;

  absl::Status Wait() const {
    if (stream == nullptr) return absl::OkStatus();
    return AclStatus(acl, acl.aclrtSynchronizeStream(stream), "aclrtSynchronizeStream");
  }
  absl::Status Copy(void* dest, const void* src, std::size_t nbytes, Kind kind) const {
    return AclStatus(acl, acl.aclrtMemcpy(dest, nbytes, src, nbytes, kind),
                     absl::StrCat("aclrtMemcpy of ", nbytes, " bytes"));
  }

  // Through the host in chunks, from the end that has not been overwritten yet: nothing is said of what aclrtMemcpy
  // does where the two overlap.
  absl::Status Move(std::byte* dest, const std::byte* src, std::size_t nbytes) const {
    std::vector<std::byte> chunk(std::min<std::size_t>(nbytes, std::size_t{1} << 20));
    for (std::size_t done = 0; done < nbytes;) {
      const std::size_t n = std::min(chunk.size(), nbytes - done);
      const std::size_t at = dest < src ? done : nbytes - done - n;
      if (absl::Status read = Copy(chunk.data(), src + at, n, kDeviceToHost); !read.ok()) return read;
      if (absl::Status written = Copy(dest + at, chunk.data(), n, kHostToDevice); !written.ok()) return written;
      done += n;
    }
    return absl::OkStatus();
  }
};

AclCopyFunctions CopiesBy(const AclFunctions& acl, void* stream, bool pointers) {
  const auto runtime = std::make_shared<const Runtime>(Runtime{acl, stream, pointers});
  AclCopyFunctions copies;
  copies.copyin = [runtime](void* dest, absl::Span<const std::byte> src) -> absl::Status {
    if (absl::Status waited = runtime->Wait(); !waited.ok()) return waited;
    return runtime->Copy(dest, src.data(), src.size(), kHostToDevice);
  };
  copies.copyout = [runtime](absl::Span<std::byte> dest, const void* src) -> absl::Status {
    if (absl::Status waited = runtime->Wait(); !waited.ok()) return waited;
    return runtime->Copy(dest.data(), src, dest.size(), kDeviceToHost);
  };
  copies.transfer = [runtime](void* dest, const void* src, std::size_t nbytes) -> absl::Status {
    if (dest == src) return absl::OkStatus();
    if (absl::Status waited = runtime->Wait(); !waited.ok()) return waited;
    const auto to = reinterpret_cast<std::uintptr_t>(dest);
    const auto from = reinterpret_cast<std::uintptr_t>(src);
    if (runtime->pointers && (to > from ? to - from : from - to) < nbytes) {
      return runtime->Move(static_cast<std::byte*>(dest), static_cast<const std::byte*>(src), nbytes);
    }
    return runtime->Copy(dest, src, nbytes, kDeviceToDevice);
  };
  if (stream != nullptr) copies.synchronize = [runtime] { return runtime->Wait(); };
  return copies;
}

// ---- the memory of a packed allocator ----

class ByAllocator final : public AclMemoryAccess {
 public:
  explicit ByAllocator(const PackedAllocator& packed)
      : packed_(packed), record_(packed.record()), opencl_(Find<OpenClNative>(packed)) {
    offset = packed.supports_offset();
    transfer = packed.supports_transfer();
    copy_from_disk = packed.supports_copy_from_disk();
    host_ptr = packed.supports_host_ptr();
    synchronize = static_cast<bool>(record_.synchronize);
    address_is_pointer = packed.traits().address_is_pointer;
    memory_domain = packed.traits().memory_domain;
  }

  absl::StatusOr<AclMemory> Reach(void* block, std::size_t skipped, void* address, std::size_t nbytes) override {
    if (std::optional<AnyBuf> known = block == nullptr ? std::nullopt : AclObject::BufferOf(block, packed_)) {
      if (skipped == 0) return AclMemory{*std::move(known)};
      absl::StatusOr<AnyBuf> view = record_.offset(*known, nbytes, skipped);
      if (!view.ok()) return view.status();
      return AclMemory{*std::move(view)};
    }
    if (opencl_ != nullptr) return WrapObject(static_cast<cl_mem>(address), nbytes);
    if (!address_is_pointer) {
      return absl::InvalidArgumentError(absl::StrCat(packed_.name(), " cannot wrap the handle 0x",
                                                     absl::Hex(reinterpret_cast<std::uintptr_t>(address))));
    }
    const BufferSpec spec{.external_ptr = reinterpret_cast<std::uintptr_t>(address)};
    absl::StatusOr<AnyBuf> buffer = packed_.alloc(nbytes, spec);
    if (!buffer.ok()) return buffer.status();
    return AclMemory{*buffer,
                     [packed = packed_, buffer = *buffer, nbytes, spec] { return packed.free(buffer, nbytes, spec); }};
  }

  absl::Status Copyin(const AclPlace& dest, absl::Span<const std::byte> src) override {
    absl::StatusOr<AnyBuf> buffer = View(dest);
    return buffer.ok() ? record_.copyin(*buffer, src) : buffer.status();
  }
  absl::Status Copyout(absl::Span<std::byte> dest, const AclPlace& src) override {
    absl::StatusOr<AnyBuf> buffer = View(src);
    return buffer.ok() ? record_.copyout(dest, *buffer) : buffer.status();
  }
  absl::Status Transfer(const AclPlace& dest, const AclPlace& src, std::size_t nbytes) override {
    absl::StatusOr<AnyBuf> to = View(dest);
    if (!to.ok()) return to.status();
    absl::StatusOr<AnyBuf> from = View(src);
    return from.ok() ? record_.transfer(*to, *from, nbytes) : from.status();
  }
  absl::Status CopyFromDisk(const AclPlace& dest, const DiskExtent& src, std::size_t nbytes) override {
    absl::StatusOr<AnyBuf> buffer = View(dest);
    return buffer.ok() ? record_.copy_from_disk(*buffer, src, nbytes) : buffer.status();
  }
  absl::StatusOr<std::byte*> HostPtr(const AclPlace& place) override {
    absl::StatusOr<AnyBuf> buffer = View(place);
    if (!buffer.ok()) return buffer.status();
    return record_.host_ptr(*buffer);
  }
  absl::Status Synchronize() override { return record_.synchronize(); }

 private:
  absl::StatusOr<AnyBuf> View(const AclPlace& place) const {
    if (place.byte_offset == 0) return *place.buffer;
    return record_.offset(*place.buffer, place.nbytes, place.byte_offset);
  }

  // A cl_mem of the allocator's context: one that its record made is used as it is, another is wrapped.
  absl::StatusOr<AclMemory> WrapObject(cl_mem mem, std::size_t nbytes) const {
    absl::StatusOr<OpenClBuf> wrapped = opencl_->Wrap(mem);
    if (absl::IsAlreadyExists(wrapped.status())) {
      return AclMemory{AnyBuf::Of<OpenClBuf>(OpenClBuf{mem, 0, nbytes}, nbytes)};
    }
    if (!wrapped.ok()) return wrapped.status();
    AnyBuf buffer = AnyBuf::Of<OpenClBuf>(*wrapped, wrapped->nbytes);
    AclMemory memory{
        buffer, [record = record_, buffer, size = wrapped->nbytes] { return record.free(buffer, size, BufferSpec()); }};
    if (wrapped->nbytes >= nbytes) return memory;
    memory.release().IgnoreError();
    return absl::InternalError(absl::StrCat("the block of ", nbytes, " bytes is a buffer object of ", wrapped->nbytes));
  }

  const PackedAllocator packed_;
  const AnyRecord record_;
  const std::shared_ptr<OpenClNative> opencl_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<AclMemoryAccess>> MakeAclMemoryAccess(const AclCallbacks& callbacks,
                                                                     const AclCopies& copies,
                                                                     const AclImportOptions& options) {
  void* stream = options.stream;
  const bool pointers = options.address_is_pointer && AclObject::AddressIsPointer(callbacks).value_or(true);
  if (const auto* packed = std::get_if<PackedAllocator>(&copies)) {
    if (!*packed) return absl::FailedPreconditionError("the PackedAllocator that is to copy is empty");
    return std::make_shared<ByAllocator>(*packed);
  }
  if (const auto* acl = std::get_if<AclFunctions>(&copies)) {
    std::vector<std::string> missing;
    if (acl->aclrtMemcpy == nullptr) missing.emplace_back("aclrtMemcpy");
    if (stream != nullptr && acl->aclrtSynchronizeStream == nullptr) missing.emplace_back("aclrtSynchronizeStream");
    if (absl::Status complete = MissingAclFunctions(*acl, missing); !complete.ok()) return complete;
    const auto ask = acl->packalloc_acl_address_is_pointer;
    const bool both = pointers && (ask == nullptr || ask(stream, callbacks.object) != 0);
    return std::make_shared<ByAddress>(CopiesBy(*acl, stream, both), both);
  }
  const auto& functions = std::get<AclCopyFunctions>(copies);
  if (!functions.copyin) return absl::InvalidArgumentError("the AclCopyFunctions have no copyin");
  if (!functions.copyout) return absl::InvalidArgumentError("the AclCopyFunctions have no copyout");
  return std::make_shared<ByAddress>(functions, pointers);
}

}  // namespace packalloc::internal
