// Ascend's allocator descriptors from C++: an allocator of packalloc for a stream, and a stream's allocator for
// packalloc. Runs on libpackalloc_acl in the place of libascendcl, without Ascend hardware.
#include <cstddef>
#include <iostream>
#include <vector>

#include "packalloc/c/acl.h"
#include "packalloc/copy.h"
#include "packalloc/interop/acl_export.h"
#include "packalloc/interop/acl_import.h"
#include "packalloc/registry.h"

namespace {

// What CANN does when a model of dynamic shapes runs on the stream.
absl::Status ExecuteModel(aclrtStream stream) {
  aclrtAllocatorDesc desc = nullptr;
  aclrtAllocator object = nullptr;
  aclrtAllocatorAllocFunc alloc = nullptr;
  aclrtAllocatorFreeFunc free = nullptr;
  if (aclrtAllocatorGetByStream(stream, &desc, &object, &alloc, &free, nullptr, nullptr) != ACL_SUCCESS) {
    return absl::FailedPreconditionError("the stream has no allocator");
  }
  aclrtAllocatorBlock workspace = alloc(object, 4096);
  if (workspace == nullptr) return absl::ResourceExhaustedError("no workspace");
  free(object, workspace);
  return absl::OkStatus();
}

absl::Status ExportToStream(aclrtStream stream, const packalloc::PackedAllocator& npu_memory) {
  // [snippet export]
  packalloc::AclExportOptions options;
  options.stream = stream;      // an aclrtStream
  options.spec.alignment = 64;  // of every block
  absl::StatusOr<packalloc::AclRegistration> registration = packalloc::ExportAclAllocator(npu_memory, options);
  if (!registration.ok()) return registration.status();  // "no libascendcl.so: ...", for one

  if (absl::Status ran = ExecuteModel(stream); !ran.ok()) {
    std::cerr << registration->last_error() << "\n";  // why a callback answered null, where one did
    return ran;
  }
  std::cout << registration->stats().kept_bytes << " bytes kept for the next run\n";
  absl::Status trimmed = registration->Trim();  // waits for the stream, gives them back
  if (!trimmed.ok()) return trimmed;
  return registration->Unregister();  // before the stream is destroyed
  // [/snippet export]
}

absl::Status ImportFromStream(aclrtStream stream) {
  // [snippet import]
  absl::StatusOr<packalloc::AclFunctions> acl = packalloc::LoadAclFunctions();
  if (!acl.ok()) return acl.status();
  packalloc::AclCallbacks theirs;
  void* desc = nullptr;
  if (acl->aclrtAllocatorGetByStream(stream, &desc, &theirs.object, &theirs.alloc, &theirs.free, &theirs.alloc_advise,
                                     &theirs.get_addr_from_block) != 0) {
    return absl::NotFoundError("nobody has registered an allocator with the stream");
  }
  auto record = packalloc::FromAclCallbacks(theirs, *acl, {.stream = stream});  // copies by aclrtMemcpy
  if (!record.ok()) return record.status();
  absl::StatusOr<packalloc::PackedAllocator> npu = packalloc::Pack(*record);
  // [/snippet import]
  if (!npu.ok()) return npu.status();
  std::vector<std::byte> bytes(1000, std::byte{7});
  std::vector<std::byte> back(1000);
  absl::StatusOr<packalloc::AnyBuf> buffer = npu->alloc(1000);
  if (!buffer.ok()) return buffer.status();
  if (absl::Status in = npu->copyin(*buffer, bytes); !in.ok()) return in;
  if (absl::Status out = npu->copyout(absl::MakeSpan(back), *buffer); !out.ok()) return out;
  if (bytes != back) return absl::DataLossError("other bytes came back");
  return npu->free(*buffer, 1000);
}

absl::Status Run(aclrtStream stream) {
  absl::StatusOr<packalloc::PackedAllocator> memory = packalloc::Open("CPU");
  if (!memory.ok()) return memory.status();
  if (absl::Status exported = ExportToStream(stream, *memory); !exported.ok()) return exported;

  aclrtAllocator theirs = nullptr;
  if (packalloc_acl_create_allocator(stream, &theirs) != ACL_SUCCESS) return absl::InternalError("no allocator");
  aclrtAllocatorDesc desc = aclrtAllocatorCreateDesc();
  aclrtAllocatorSetObjToDesc(desc, theirs);
  aclrtAllocatorSetAllocFuncToDesc(desc, packalloc_acl_alloc);
  aclrtAllocatorSetAllocAdviseFuncToDesc(desc, packalloc_acl_alloc_advise);
  aclrtAllocatorSetFreeFuncToDesc(desc, packalloc_acl_free);
  aclrtAllocatorSetGetAddrFromBlockFuncToDesc(desc, packalloc_acl_get_addr_from_block);
  aclrtAllocatorRegister(stream, desc);
  aclrtAllocatorDestroyDesc(desc);
  absl::Status imported = ImportFromStream(stream);
  packalloc_acl_destroy_allocator(theirs);
  return imported;
}

}  // namespace

int main() {
  aclrtStream stream = nullptr;
  if (packalloc_acl_create_stream("CPU", &stream) != ACL_SUCCESS) {
    std::cerr << packalloc_acl_last_error() << "\n";
    return 1;
  }
  const absl::Status ran = Run(stream);
  std::cout << ran << "\n";
  return packalloc_acl_destroy_stream(stream) == ACL_SUCCESS && ran.ok() ? 0 : 1;
}
