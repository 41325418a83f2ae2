// Ascend's AscendCL runtime (CANN), as far as its allocator descriptors go: what acl_export.h and acl_import.h share.
// Needs none of CANN's headers: its handles are void*, its aclError is an int.
//
//   absl::StatusOr<packalloc::AclFunctions> acl = packalloc::LoadAclFunctions();   // libascendcl.so, found now
//   if (!acl.ok()) std::cerr << acl.status();                                      // "no libascendcl.so: ..."
//
//   packalloc::AclFunctions mine;                                                  // or from wherever they come
//   mine.aclrtAllocatorRegister = &aclrtAllocatorRegister;
//   mine.aclrtMemcpy = [](void* dest, std::size_t most, const void* src, std::size_t n, int kind) {
//     return aclrtMemcpy(dest, most, src, n, static_cast<aclrtMemcpyKind>(kind)); };   // an enum in CANN's header
//
// libpackalloc_acl (packalloc/c/acl.h) has these functions over any device of packalloc, under the same names.
#ifndef PACKALLOC_INTEROP_ACL_H_
#define PACKALLOC_INTEROP_ACL_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace packalloc {

// The four functions of an allocator descriptor, and the object that they get (get_addr_from_block gets none). CANN's
// contract: alloc answers null where memory ran out; the address given to alloc_advise is a hint; none of them throws
// or executes anything on the stream.
struct AclCallbacks {
  using Alloc = void* (*)(void* object, std::size_t nbytes);  // a block
  using AllocAdvise = void* (*)(void* object, std::size_t nbytes, void* address);
  using Free = void (*)(void* object, void* block);
  using GetAddrFromBlock = void* (*)(void* block);

  void* object = nullptr;
  Alloc alloc = nullptr;
  AllocAdvise alloc_advise = nullptr;
  Free free = nullptr;
  GetAddrFromBlock get_addr_from_block = nullptr;
};

// Functions of the runtime by CANN's names; which of them must be there is said where they are used. Each answers an
// aclError: 0 is success, 100000 an invalid parameter, 200000 and 207001 that host or device memory ran out.
struct AclFunctions {
  void* (*aclrtAllocatorCreateDesc)() = nullptr;
  int (*aclrtAllocatorDestroyDesc)(void* desc) = nullptr;
  int (*aclrtAllocatorSetObjToDesc)(void* desc, void* object) = nullptr;
  int (*aclrtAllocatorSetAllocFuncToDesc)(void* desc, AclCallbacks::Alloc func) = nullptr;
  int (*aclrtAllocatorSetAllocAdviseFuncToDesc)(void* desc, AclCallbacks::AllocAdvise func) = nullptr;
  int (*aclrtAllocatorSetFreeFuncToDesc)(void* desc, AclCallbacks::Free func) = nullptr;
  int (*aclrtAllocatorSetGetAddrFromBlockFuncToDesc)(void* desc, AclCallbacks::GetAddrFromBlock func) = nullptr;
  int (*aclrtAllocatorRegister)(void* stream, void* desc) = nullptr;
  int (*aclrtAllocatorUnregister)(void* stream) = nullptr;
  // Not in every version of CANN.
  int (*aclrtAllocatorGetByStream)(void* stream, void** desc, void** object, AclCallbacks::Alloc* alloc,
                                   AclCallbacks::Free* free, AclCallbacks::AllocAdvise* alloc_advise,
                                   AclCallbacks::GetAddrFromBlock* get_addr_from_block) = nullptr;
  int (*aclrtSynchronizeStream)(void* stream) = nullptr;
  int (*aclrtStreamQuery)(void* stream, int* status) = nullptr;  // *status 0: all work is done
  // kind: 0 host to host, 1 host to device, 2 device to host, 3 device to device.
  int (*aclrtMemcpy)(void* dest, std::size_t dest_max, const void* src, std::size_t count, int kind) = nullptr;

  // libpackalloc_acl only (packalloc/c/acl.h), null elsewhere: the sentence behind a code, which errors then end with,
  // and whether FromAclCallbacks may add to addresses. A caller who fills in the table for that library gives both.
  const char* (*packalloc_acl_last_error)() = nullptr;
  int (*packalloc_acl_address_is_pointer)(void* stream, void* allocator) = nullptr;

  std::string library{};  // the file that they are of, for messages; "" where the caller gave them
};

// The functions of `library`; "" is the path in PACKALLOC_LIBASCENDCL, else the library that the program is linked with
// (libascendcl or libpackalloc_acl), else libascendcl.so, where the dynamic linker finds it. Those that it lacks are
// null. The library stays loaded for ever. UNAVAILABLE, with the linker's reason, where there is none. Thread-safe.
absl::StatusOr<AclFunctions> LoadAclFunctions(const std::string& library = "");

}  // namespace packalloc

#endif  // PACKALLOC_INTEROP_ACL_H_
