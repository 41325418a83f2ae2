// Any set of Ascend allocator callbacks as a record: what a framework registered with a stream becomes an allocator
// like every other, to pack, cache, trace, or hold to the contract suite.
//
//   packalloc::AclCallbacks theirs;
//   void* desc = nullptr;
//   acl.aclrtAllocatorGetByStream(stream, &desc, &theirs.object, &theirs.alloc, &theirs.free, &theirs.alloc_advise,
//                                 &theirs.get_addr_from_block);
//   absl::StatusOr<packalloc::Allocator<packalloc::AclBlock>> record =
//       packalloc::FromAclCallbacks(theirs, acl, {.stream = stream});          // copies by aclrtMemcpy
//   absl::StatusOr<packalloc::PackedAllocator> npu = packalloc::Pack(*record);
#ifndef PACKALLOC_INTEROP_ACL_IMPORT_H_
#define PACKALLOC_INTEROP_ACL_IMPORT_H_

#include <cstddef>
#include <functional>
#include <limits>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "packalloc/allocator.h"
#include "packalloc/buffer_spec.h"
#include "packalloc/interop/acl.h"
#include "packalloc/packed_allocator.h"

namespace packalloc {

// The handle of an imported allocator's buffer: `nbytes` at `byte_offset` from `address`, in the callbacks' `block`
// (null for external_ptr). All null for a buffer of 0 bytes.
struct AclBlock {
  void* block = nullptr;
  void* address = nullptr;
  std::size_t byte_offset = 0;
  std::size_t nbytes = 0;
  friend bool operator==(const AclBlock&, const AclBlock&) = default;
};

// Copies of the caller's own, by device address. Complete on return, as those of Allocator are.
struct AclCopyFunctions {
  std::function<absl::Status(void* dest, absl::Span<const std::byte> src)> copyin;
  std::function<absl::Status(absl::Span<std::byte> dest, const void* src)> copyout;
  // Optional. As if by memmove.
  std::function<absl::Status(void* dest, const void* src, std::size_t nbytes)> transfer{};
  std::function<absl::Status()> synchronize{};
};

// How bytes get to and from the memory that the callbacks hand out:
//  - functions of the caller's;
//  - the runtime: aclrtMemcpy, and aclrtSynchronizeStream where options.stream says which. CANN demands that every
//    thread that copies has a device set (aclrtSetDevice);
//  - a packed allocator whose memory the addresses denote. It is asked to wrap each (by external_ptr; on OpenCL each is
//    a cl_mem of its context), or knows it, where ExportAclAllocator exported that very allocator: the only way for
//    other handles, and for MOCK. An address that it cannot wrap is alloc's error.
using AclCopies = std::variant<AclCopyFunctions, AclFunctions, PackedAllocator>;

struct AclImportOptions {
  std::string name = "ACL";
  // What the callbacks promise, in bytes. A larger spec.alignment is served from a larger block, where addresses are
  // pointers.
  std::size_t min_alignment = 1;
  std::size_t max_alloc_bytes = std::numeric_limits<std::ptrdiff_t>::max();
  // Whether get_addr_from_block answers pointers, to which one may add; false for handles, as a cl_mem is one. With
  // handles, copies by functions or by aclrtMemcpy reach a block from its first byte on: the record then has no offset,
  // and no alignment above min_alignment. Set to false by itself where ExportAclAllocator or libpackalloc_acl knows
  // that they are handles, or libpackalloc_acl knows neither callbacks.object nor `stream`. A packed allocator says
  // itself what its addresses are.
  bool address_is_pointer = true;
  // For aclrtSynchronizeStream, which synchronize and every copy call then, so that copies follow the stream's work.
  void* stream = nullptr;
  // Which address to suggest for a request, null for none: alloc_advise is called with it, and, where that answers null
  // or is not there, alloc.
  std::function<void*(std::size_t nbytes, const BufferSpec& spec)> advise{};
};

// A record over `callbacks`, whose object the caller keeps alive until the last copy of the record is gone and the last
// buffer freed. They are called from every thread that calls the record, several at a time: more than CANN itself
// demands of them.
//  - alloc: null from the callbacks is RESOURCE_EXHAUSTED; a block without an address INTERNAL. `zero` is filled in by
//    copies. `host` and `cpu_access` need a packed allocator that has a host_ptr for the memory, `uncached` is refused;
//    `external_ptr` is a device address. Blocks that the callbacks keep for themselves are theirs to keep, `nolru` or
//    not.
//  - free: of what is no live block, INVALID_ARGUMENT.
//  - offset, transfer, synchronize, host_ptr and copy_from_disk are there where the copies have them; with aclrtMemcpy,
//    offset (where addresses are pointers) and transfer.
// INVALID_ARGUMENT naming the callback (alloc, free, get_addr_from_block) or the copy function that is null, also
// aclrtMemcpy, and for a min_alignment that is no power of two; UNAVAILABLE for a loaded runtime without aclrtMemcpy;
// FAILED_PRECONDITION for an empty packed allocator. Thread-safe as the callbacks are.
absl::StatusOr<Allocator<AclBlock>> FromAclCallbacks(const AclCallbacks& callbacks, const AclCopies& copies,
                                                     const AclImportOptions& options = {});

}  // namespace packalloc

#endif  // PACKALLOC_INTEROP_ACL_IMPORT_H_
