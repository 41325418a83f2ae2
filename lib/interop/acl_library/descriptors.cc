// Allocator descriptors and the streams that have one.
#include <map>
#include <memory>
#include <mutex>
#include <new>

#include "absl/status/status.h"
#include "lib/interop/acl_library/acl_call.h"
#include "packalloc/c/acl.h"
#include "packalloc/interop/acl.h"

namespace packalloc {
namespace {

struct Registration {
  aclrtAllocatorDesc desc;  // may be gone
  AclCallbacks callbacks;
};

struct Registry {
  std::mutex mutex;  // no callback is called under it
  std::map<aclrtAllocatorDesc, std::unique_ptr<AclCallbacks>> descs;
  std::map<aclrtStream, Registration> streams;
};

// Never destroyed: programs unregister while they exit.
Registry& GetRegistry() {
  static auto& registry = *new Registry;
  return registry;
}

absl::Status UnknownDesc() {
  return absl::InvalidArgumentError("the allocatorDesc is none, or was destroyed: aclrtAllocatorCreateDesc makes one");
}

template <typename T>
aclError Set(aclrtAllocatorDesc desc, T AclCallbacks::*member, T value, const char* name) {
  return AclCall([&]() -> absl::Status {
    if (desc == nullptr) return NullParameter("allocatorDesc");
    if (value == nullptr) return NullParameter(name);
    Registry& registry = GetRegistry();
    const std::lock_guard lock(registry.mutex);
    const auto found = registry.descs.find(desc);
    if (found == registry.descs.end()) return UnknownDesc();
    found->second.get()->*member = value;
    return absl::OkStatus();
  });
}

absl::Status Register(aclrtStream stream, aclrtAllocatorDesc desc) {
  if (stream == nullptr) return NullParameter("stream");
  if (desc == nullptr) return NullParameter("allocatorDesc");
  Registry& registry = GetRegistry();
  const std::lock_guard lock(registry.mutex);
  const auto found = registry.descs.find(desc);
  if (found == registry.descs.end()) return UnknownDesc();
  const AclCallbacks& callbacks = *found->second;
  const char* missing = callbacks.object == nullptr                ? "object"
                        : callbacks.alloc == nullptr               ? "alloc function"
                        : callbacks.free == nullptr                ? "free function"
                        : callbacks.get_addr_from_block == nullptr ? "get_addr_from_block function"
                                                                   : nullptr;
  if (missing != nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("the allocatorDesc has no ", missing, " set"));
  }
  registry.streams[stream] = {desc, callbacks};
  return absl::OkStatus();
}

}  // namespace
}  // namespace packalloc

using packalloc::AclCall;
using packalloc::AclCallbacks;
using packalloc::GetRegistry;
using packalloc::NullParameter;
using packalloc::Set;

extern "C" {

aclrtAllocatorDesc aclrtAllocatorCreateDesc(void) {
  aclrtAllocatorDesc desc = nullptr;
  AclCall([&] {
    auto made = std::make_unique<AclCallbacks>();
    aclrtAllocatorDesc key = made.get();
    const std::lock_guard lock(GetRegistry().mutex);
    GetRegistry().descs.emplace(key, std::move(made));
    desc = key;
    return absl::OkStatus();
  });
  return desc;
}

aclError aclrtAllocatorDestroyDesc(aclrtAllocatorDesc allocatorDesc) {
  return AclCall([&]() -> absl::Status {
    if (allocatorDesc == nullptr) return NullParameter("allocatorDesc");
    const std::lock_guard lock(GetRegistry().mutex);
    return GetRegistry().descs.erase(allocatorDesc) == 1 ? absl::OkStatus() : packalloc::UnknownDesc();
  });
}

aclError aclrtAllocatorSetObjToDesc(aclrtAllocatorDesc allocatorDesc, aclrtAllocator allocator) {
  return Set(allocatorDesc, &AclCallbacks::object, allocator, "allocator");
}

aclError aclrtAllocatorSetAllocFuncToDesc(aclrtAllocatorDesc allocatorDesc, aclrtAllocatorAllocFunc func) {
  return Set(allocatorDesc, &AclCallbacks::alloc, func, "func");
}

aclError aclrtAllocatorSetAllocAdviseFuncToDesc(aclrtAllocatorDesc allocatorDesc, aclrtAllocatorAllocAdviseFunc func) {
  return Set(allocatorDesc, &AclCallbacks::alloc_advise, func, "func");
}

aclError aclrtAllocatorSetFreeFuncToDesc(aclrtAllocatorDesc allocatorDesc, aclrtAllocatorFreeFunc func) {
  return Set(allocatorDesc, &AclCallbacks::free, func, "func");
}

aclError aclrtAllocatorSetGetAddrFromBlockFuncToDesc(aclrtAllocatorDesc allocatorDesc,
                                                     aclrtAllocatorGetAddrFromBlockFunc func) {
  return Set(allocatorDesc, &AclCallbacks::get_addr_from_block, func, "func");
}

aclError aclrtAllocatorRegister(aclrtStream stream, aclrtAllocatorDesc allocatorDesc) {
  return AclCall([&] { return packalloc::Register(stream, allocatorDesc); });
}

aclError aclrtAllocatorUnregister(aclrtStream stream) {
  return AclCall([&]() -> absl::Status {
    if (stream == nullptr) return NullParameter("stream");
    const std::lock_guard lock(GetRegistry().mutex);
    GetRegistry().streams.erase(stream);
    return absl::OkStatus();
  });
}

aclError aclrtAllocatorGetByStream(aclrtStream stream, aclrtAllocatorDesc* allocatorDesc, aclrtAllocator* allocator,
                                   aclrtAllocatorAllocFunc* allocFunc, aclrtAllocatorFreeFunc* freeFunc,
                                   aclrtAllocatorAllocAdviseFunc* allocAdviseFunc,
                                   aclrtAllocatorGetAddrFromBlockFunc* getAddrFromBlockFunc) {
  return AclCall([&]() -> absl::Status {
    if (allocatorDesc == nullptr) return NullParameter("allocatorDesc");
    if (stream == nullptr) return NullParameter("stream");
    const std::lock_guard lock(GetRegistry().mutex);
    const auto found = GetRegistry().streams.find(stream);
    if (found == GetRegistry().streams.end()) {
      return absl::InvalidArgumentError("no allocator is registered with the stream");
    }
    const AclCallbacks& callbacks = found->second.callbacks;
    *allocatorDesc = found->second.desc;
    if (allocator != nullptr) *allocator = callbacks.object;
    if (allocFunc != nullptr) *allocFunc = callbacks.alloc;
    if (freeFunc != nullptr) *freeFunc = callbacks.free;
    if (allocAdviseFunc != nullptr) *allocAdviseFunc = callbacks.alloc_advise;
    if (getAddrFromBlockFunc != nullptr) *getAddrFromBlockFunc = callbacks.get_addr_from_block;
    return absl::OkStatus();
  });
}

}  // extern "C"
