// How an imported Ascend allocator's record reaches the bytes behind its device addresses.
#ifndef PACKALLOC_LIB_INTEROP_ACL_MEMORY_H_
#define PACKALLOC_LIB_INTEROP_ACL_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "packalloc/allocator.h"
#include "packalloc/interop/acl_import.h"
#include "packalloc/packed_allocator.h"

namespace packalloc::internal {

// Memory at a device address, as the copies know it.
struct AclMemory {
  std::optional<AnyBuf> buffer{};           // of the allocator whose memory it is; not set for copies by address
  std::function<absl::Status()> release{};  // lets go of `buffer`; null: nothing to do
};

// Bytes of it: `byte_offset` from `address`.
struct AclPlace {
  void* address;
  std::size_t byte_offset;
  std::size_t nbytes;
  std::optional<AnyBuf> buffer;
};

class AclMemoryAccess {
 public:
  virtual ~AclMemoryAccess() = default;
  AclMemoryAccess() = default;
  AclMemoryAccess(const AclMemoryAccess&) = delete;
  AclMemoryAccess& operator=(const AclMemoryAccess&) = delete;

  // `nbytes` at `address`, which is `skipped` bytes into the memory of `block` (null: of nobody's).
  virtual absl::StatusOr<AclMemory> Reach(void* block, std::size_t skipped, void* address, std::size_t nbytes) = 0;
  virtual absl::Status Copyin(const AclPlace& dest, absl::Span<const std::byte> src) = 0;
  virtual absl::Status Copyout(absl::Span<std::byte> dest, const AclPlace& src) = 0;
  virtual absl::Status Transfer(const AclPlace& dest, const AclPlace& src, std::size_t nbytes) = 0;
  virtual absl::Status CopyFromDisk(const AclPlace& dest, const DiskExtent& src, std::size_t nbytes) = 0;
  virtual absl::StatusOr<std::byte*> HostPtr(const AclPlace& place) = 0;
  virtual absl::Status Synchronize() = 0;

  // What it can, in the record's words.
  bool offset = false;
  bool transfer = false;
  bool copy_from_disk = false;
  bool host_ptr = false;
  bool synchronize = false;
  bool address_is_pointer = true;
  std::uint32_t memory_domain = 0;
};

// To the memory of `callbacks`. Errors as FromAclCallbacks.
absl::StatusOr<std::shared_ptr<AclMemoryAccess>> MakeAclMemoryAccess(const AclCallbacks& callbacks,
                                                                     const AclCopies& copies,
                                                                     const AclImportOptions& options);

}  // namespace packalloc::internal

#endif  // PACKALLOC_LIB_INTEROP_ACL_MEMORY_H_
