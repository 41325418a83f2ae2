#include "packalloc/interop/acl_import.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "lib/checked_math.h"
#include "lib/checks.h"
#include "lib/interop/acl_memory.h"

namespace packalloc {
namespace {

using internal::AclMemory;
using internal::AclMemoryAccess;
using internal::AclPlace;

class ImportedAcl {
 public:
  ImportedAcl(const AclCallbacks& callbacks, AclImportOptions options, std::shared_ptr<AclMemoryAccess> memory)
      : callbacks_(callbacks), options_(std::move(options)), memory_(std::move(memory)) {}

  AclMemoryAccess& memory() const { return *memory_; }
  const std::string& name() const { return options_.name; }

  absl::StatusOr<AclBlock> Alloc(std::size_t nbytes, const BufferSpec& spec);
  absl::Status Free(const AclBlock& buf, std::size_t nbytes, const BufferSpec& spec);
  absl::StatusOr<AclBlock> Offset(const AclBlock& buf, std::size_t nbytes, std::size_t byte_offset);
  absl::Status Copyin(const AclBlock& dest, absl::Span<const std::byte> src);
  absl::Status Copyout(absl::Span<std::byte> dest, const AclBlock& src);
  absl::Status Transfer(const AclBlock& dest, const AclBlock& src, std::size_t nbytes);
  absl::Status CopyFromDisk(const AclBlock& dest, const DiskExtent& src, std::size_t nbytes);
  absl::StatusOr<std::byte*> HostPtr(const AclBlock& buf);

 private:
  struct Live {
    AclMemory memory{};
    std::size_t nbytes = 0;
  };
  using LiveBlocks = std::map<void*, Live>;

  // A block of the callbacks on its way: they get it back unless it arrives.
  class Taken {
   public:
    Taken(const AclCallbacks& callbacks, void* block) : callbacks_(callbacks), block_(block) {}
    Taken(const Taken&) = delete;
    Taken& operator=(const Taken&) = delete;
    ~Taken() {
      if (block_ == nullptr) return;
      try {
        callbacks_.free(callbacks_.object, block_);
      } catch (...) {  // NOLINT(bugprone-empty-catch): what led here is the error to report
      }
    }
    void Arrive() { block_ = nullptr; }

   private:
    const AclCallbacks& callbacks_;
    void* block_;
  };

  absl::Status CheckSpec(std::size_t nbytes, const BufferSpec& spec) const;
  void* AskFor(std::size_t nbytes, const BufferSpec& spec) const;
  // As `spec` asks for; what it cannot be is an error.
  absl::Status Prepare(const AclPlace& place, const BufferSpec& spec) const;
  // Calls `body` with where the buffer is.
  template <typename Body>
  auto With(const AclBlock& buf, const char* operation, Body body) -> decltype(body(std::declval<const AclPlace&>()));

  const AclCallbacks callbacks_;
  const AclImportOptions options_;
  const std::shared_ptr<AclMemoryAccess> memory_;
  std::mutex mutex_;
  LiveBlocks live_;
};

absl::Status ImportedAcl::CheckSpec(std::size_t nbytes, const BufferSpec& spec) const {
  if (absl::Status valid = CheckRequest(name(), nbytes, spec); !valid.ok()) return valid;
  const bool needs_more = !spec.external_ptr && spec.alignment > options_.min_alignment;
  const char* refused = spec.uncached                                                     ? "uncached"
                        : (spec.host || spec.cpu_access) && !memory_->host_ptr            ? "host memory"
                        : needs_more && !(memory_->offset && memory_->address_is_pointer) ? "such an alignment"
                                                                                          : nullptr;
  if (refused != nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(name(), ": the callbacks cannot be asked for ", refused, ": ", ToString(spec)));
  }
  if (nbytes > options_.max_alloc_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        name(), ": alloc of ", nbytes, " bytes, but the largest single allocation is ", options_.max_alloc_bytes));
  }
  return absl::OkStatus();
}

void* ImportedAcl::AskFor(std::size_t nbytes, const BufferSpec& spec) const {
  void* advised = options_.advise && callbacks_.alloc_advise != nullptr ? options_.advise(nbytes, spec) : nullptr;
  void* block = advised == nullptr ? nullptr : callbacks_.alloc_advise(callbacks_.object, nbytes, advised);
  return block != nullptr ? block : callbacks_.alloc(callbacks_.object, nbytes);
}

absl::Status ImportedAcl::Prepare(const AclPlace& place, const BufferSpec& spec) const {
  if (spec.host || spec.cpu_access) {
    absl::StatusOr<std::byte*> pointer = memory_->HostPtr(place);
    if (!pointer.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(name(), ": the callbacks' memory is not host memory, which ",
                                                     ToString(spec), " asks for: ", pointer.status().message()));
    }
  }
  if (!spec.zero) return absl::OkStatus();
  const std::vector<std::byte> zeros(memory_->offset ? std::min<std::size_t>(place.nbytes, std::size_t{1} << 20)
                                                     : place.nbytes);
  for (std::size_t done = 0; done < place.nbytes; done += zeros.size()) {
    AclPlace rest = place;
    rest.byte_offset += done;
    rest.nbytes -= done;
    const auto some = absl::MakeConstSpan(zeros).subspan(0, rest.nbytes);
    if (absl::Status filled = memory_->Copyin(rest, some); !filled.ok()) return filled;
  }
  return absl::OkStatus();
}

absl::StatusOr<AclBlock> ImportedAcl::Alloc(std::size_t nbytes, const BufferSpec& spec) {
  if (absl::Status valid = CheckSpec(nbytes, spec); !valid.ok()) return valid;
  if (nbytes == 0) return AclBlock();
  if (spec.external_ptr) {
    void* address = reinterpret_cast<void*>(*spec.external_ptr);
    const AclBlock wrapped{nullptr, address, 0, nbytes};
    absl::Status granted = With(wrapped, "alloc", [&](const AclPlace& place) { return Prepare(place, spec); });
    if (!granted.ok()) return granted;
    return wrapped;
  }
  const std::size_t extra = spec.alignment > options_.min_alignment ? spec.alignment - 1 : 0;
  void* block = AskFor(nbytes + extra, spec);  // at most PTRDIFF_MAX and kMaxAlignment
  if (block == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat(name(), ": the callbacks answered null when asked for ", nbytes + extra, " bytes"));
  }
  Taken taken(callbacks_, block);
  void* address = callbacks_.get_addr_from_block(block);
  if (address == nullptr) {
    return absl::InternalError(
        absl::StrCat(name(), ": get_addr_from_block answered null for a block of ", nbytes + extra, " bytes"));
  }
  std::size_t skipped = 0;
  if (extra != 0) {
    skipped = (spec.alignment - reinterpret_cast<std::uintptr_t>(address) % spec.alignment) % spec.alignment;
    address = static_cast<std::byte*>(address) + skipped;
  }
  LiveBlocks one;
  Live& live = one.try_emplace(block).first->second;
  live.nbytes = nbytes;
  absl::StatusOr<AclMemory> memory = memory_->Reach(block, skipped, address, nbytes);
  if (!memory.ok()) return memory.status();
  live.memory = *std::move(memory);
  struct LetGo {
    const AclMemory* memory;
    ~LetGo() {
      if (memory == nullptr || !memory->release) return;
      try {
        memory->release().IgnoreError();
      } catch (...) {  // NOLINT(bugprone-empty-catch): what led here is the error to report
      }
    }
  } let_go{&live.memory};
  absl::Status prepared = Prepare({address, 0, nbytes, live.memory.buffer}, spec);
  if (!prepared.ok()) return prepared;
  {
    const std::lock_guard lock(mutex_);
    live_.merge(one);
  }
  if (!one.empty()) {
    taken.Arrive();  // it is a live buffer's
    return absl::InternalError(absl::StrCat(name(), ": the callbacks gave a block out twice"));
  }
  let_go.memory = nullptr;
  taken.Arrive();
  return AclBlock{block, address, 0, nbytes};
}

absl::Status ImportedAcl::Free(const AclBlock& buf, std::size_t nbytes, const BufferSpec& spec) {
  if (nbytes == 0 && buf.address == nullptr) return absl::OkStatus();
  if (spec.external_ptr.has_value() != (buf.block == nullptr)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name(), ": free with another spec, ", ToString(spec), ", than the buffer was allocated with"));
  }
  if (buf.byte_offset != 0) return absl::InvalidArgumentError(absl::StrCat(name(), ": free of a view"));
  if (buf.block == nullptr) return CheckFreeSize(name(), nbytes, buf.nbytes);
  LiveBlocks::node_type node;
  {
    const std::lock_guard lock(mutex_);
    const auto found = live_.find(buf.block);
    if (found == live_.end()) {
      return absl::InvalidArgumentError(absl::StrCat(name(), ": free of a block that is not, or no longer, live"));
    }
    if (absl::Status same = CheckFreeSize(name(), nbytes, found->second.nbytes); !same.ok()) return same;
    node = live_.extract(found);
  }
  // Until the callback has it, a failure or an exception leaves the buffer as it was.
  struct Back {
    ImportedAcl& self;
    LiveBlocks::node_type& node;
    ~Back() {
      if (node.empty()) return;
      const std::lock_guard lock(self.mutex_);
      self.live_.insert(std::move(node));
    }
  } back{*this, node};
  if (node.mapped().memory.release) {
    if (absl::Status released = node.mapped().memory.release(); !released.ok()) return released;
    node.mapped().memory.release = nullptr;
  }
  node = {};
  callbacks_.free(callbacks_.object, buf.block);
  return absl::OkStatus();
}

absl::StatusOr<AclBlock> ImportedAcl::Offset(const AclBlock& buf, std::size_t nbytes, std::size_t byte_offset) {
  if (absl::Status fits = CheckView(name(), nbytes, byte_offset, buf.nbytes); !fits.ok()) return fits;
  if (nbytes == 0) return AclBlock();
  return AclBlock{buf.block, buf.address, buf.byte_offset + byte_offset, nbytes};
}

template <typename Body>
auto ImportedAcl::With(const AclBlock& buf, const char* operation, Body body)
    -> decltype(body(std::declval<const AclPlace&>())) {
  AclPlace place{buf.address, buf.byte_offset, buf.nbytes, std::nullopt};
  if (buf.block != nullptr) {
    bool live = false;
    {
      const std::lock_guard lock(mutex_);
      const auto found = live_.find(buf.block);
      live = found != live_.end();
      if (live) place.buffer = found->second.memory.buffer;
    }
    if (live) return body(place);
    return absl::InvalidArgumentError(
        absl::StrCat(name(), ": ", operation, " of a block that is not, or no longer, live"));
  }
  const std::size_t whole = buf.byte_offset + buf.nbytes;
  absl::StatusOr<AclMemory> memory = memory_->Reach(nullptr, 0, buf.address, whole);
  if (!memory.ok()) return memory.status();
  place.buffer = memory->buffer;
  auto result = body(place);
  if (!memory->release) return result;
  absl::Status released = memory->release();
  return released.ok() ? std::move(result) : decltype(result)(std::move(released));
}

absl::Status ImportedAcl::Copyin(const AclBlock& dest, absl::Span<const std::byte> src) {
  if (absl::Status fits = CheckCopy(name() + ": copyin", src.size(), dest.nbytes); !fits.ok()) return fits;
  if (src.empty()) return absl::OkStatus();
  return With(dest, "copyin", [&](const AclPlace& place) { return memory_->Copyin(place, src); });
}

absl::Status ImportedAcl::Copyout(absl::Span<std::byte> dest, const AclBlock& src) {
  if (absl::Status fits = CheckCopy(name() + ": copyout", dest.size(), src.nbytes); !fits.ok()) return fits;
  if (dest.empty()) return absl::OkStatus();
  return With(src, "copyout", [&](const AclPlace& place) { return memory_->Copyout(dest, place); });
}

absl::Status ImportedAcl::Transfer(const AclBlock& dest, const AclBlock& src, std::size_t nbytes) {
  if (absl::Status fits = CheckCopy(name() + ": transfer to", nbytes, dest.nbytes); !fits.ok()) return fits;
  if (absl::Status fits = CheckCopy(name() + ": transfer from", nbytes, src.nbytes); !fits.ok()) return fits;
  if (nbytes == 0) return absl::OkStatus();
  return With(dest, "transfer", [&](const AclPlace& to) {
    return With(src, "transfer", [&](const AclPlace& from) { return memory_->Transfer(to, from, nbytes); });
  });
}

absl::Status ImportedAcl::CopyFromDisk(const AclBlock& dest, const DiskExtent& src, std::size_t nbytes) {
  if (absl::Status fits = CheckCopy(name() + ": copy_from_disk", nbytes, dest.nbytes); !fits.ok()) return fits;
  if (nbytes == 0) return absl::OkStatus();
  return With(dest, "copy_from_disk", [&](const AclPlace& place) { return memory_->CopyFromDisk(place, src, nbytes); });
}

absl::StatusOr<std::byte*> ImportedAcl::HostPtr(const AclBlock& buf) {
  if (buf.nbytes == 0) return nullptr;
  return With(buf, "host_ptr", [&](const AclPlace& place) { return memory_->HostPtr(place); });
}

absl::Status CheckCallbacks(const AclCallbacks& callbacks, const AclImportOptions& options) {
  const char* missing = callbacks.alloc == nullptr                 ? "alloc"
                        : callbacks.free == nullptr                ? "free"
                        : callbacks.get_addr_from_block == nullptr ? "get_addr_from_block"
                                                                   : nullptr;
  if (missing != nullptr) return absl::InvalidArgumentError(absl::StrCat("the AclCallbacks have no ", missing));
  if (IsPowerOfTwo(options.min_alignment)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("AclImportOptions.min_alignment is ", options.min_alignment, ", not a power of two"));
}

void AddOptional(const std::shared_ptr<ImportedAcl>& self, Allocator<AclBlock>& out) {
  const AclMemoryAccess& can = self->memory();
  if (can.offset) {
    out.offset = [self](const AclBlock& buf, std::size_t nbytes, std::size_t byte_offset) {
      return self->Offset(buf, nbytes, byte_offset);
    };
  }
  if (can.transfer) {
    out.transfer = [self](const AclBlock& dest, const AclBlock& src, std::size_t nbytes) {
      return self->Transfer(dest, src, nbytes);
    };
  }
  if (can.copy_from_disk) {
    out.copy_from_disk = [self](const AclBlock& dest, const DiskExtent& src, std::size_t nbytes) {
      return self->CopyFromDisk(dest, src, nbytes);
    };
  }
  if (can.host_ptr) {
    out.host_ptr = [self](const AclBlock& buf) { return self->HostPtr(buf); };
  }
  if (can.synchronize) {
    out.synchronize = [self] { return self->memory().Synchronize(); };
  }
}

}  // namespace

absl::StatusOr<Allocator<AclBlock>> FromAclCallbacks(const AclCallbacks& callbacks, const AclCopies& copies,
                                                     const AclImportOptions& options) {
  if (absl::Status complete = CheckCallbacks(callbacks, options); !complete.ok()) return complete;
  absl::StatusOr<std::shared_ptr<AclMemoryAccess>> memory = internal::MakeAclMemoryAccess(callbacks, copies, options);
  if (!memory.ok()) return memory.status();
  Allocator<AclBlock> out;
  out.traits.name = options.name;
  out.traits.min_alignment = options.min_alignment;
  out.traits.max_alloc_bytes = options.max_alloc_bytes;
  out.traits.address_is_pointer = (*memory)->address_is_pointer;
  out.traits.transfer_domain = NewDomain();
  out.traits.memory_domain = (*memory)->memory_domain;
  const auto self = std::make_shared<ImportedAcl>(callbacks, options, *std::move(memory));
  out.alloc = [self](std::size_t nbytes, const BufferSpec& spec) { return self->Alloc(nbytes, spec); };
  out.free = [self](const AclBlock& buf, std::size_t nbytes, const BufferSpec& spec) {
    return self->Free(buf, nbytes, spec);
  };
  out.copyin = [self](const AclBlock& dest, absl::Span<const std::byte> src) { return self->Copyin(dest, src); };
  out.copyout = [self](absl::Span<std::byte> dest, const AclBlock& src) { return self->Copyout(dest, src); };
  out.addr = [self](const AclBlock& buf) {
    const auto value = reinterpret_cast<std::uintptr_t>(buf.address);
    if (!self->memory().address_is_pointer) return DeviceAddress{value, buf.byte_offset};
    return DeviceAddress{value + buf.byte_offset, 0};
  };
  AddOptional(self, out);
  return out;
}

}  // namespace packalloc
