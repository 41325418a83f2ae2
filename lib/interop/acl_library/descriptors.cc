// Allocator descriptors and the streams that have one.
#include <map>
#include <memory>
#include <mutex>
#include <new>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/fork_guard.h"
#include "lib/interop/acl_library/acl_call.h"
#include "packalloc/c/acl.h"
#include "packalloc/interop/acl.h"

namespace packalloc {
namespace {

struct Registration {
  aclrtAllocatorDesc desc;  // may be gone
  AclCallbacks callbacks;
};

struct Registry final : private ForkGuarded {
  Registry() { BeginForkGuard(this, ForkRank::kCache); }
  std::mutex mutex;  // no callback is called under it
  std::map<aclrtAllocatorDesc, std::unique_ptr<AclCallbacks>> descs;
  std::map<aclrtStream, Registration> streams;

 private:
  void BeforeFork() override { mutex.lock(); }
  void AfterFork(bool) override { mutex.unlock(); }
};

// Never destroyed: programs unregister while they exit.
Registry& GetRegistry() {
  static auto& registry = *new Registry;
  return registry;
}

absl::Status UnknownDesc() {
  return absl::InvalidArgumentError("the allocator_desc is none, or was destroyed: aclrtAllocatorCreateDesc makes one");
}

template <typename T>
aclError Set(aclrtAllocatorDesc desc, T AclCallbacks::*member, T value, const char* name) {
  return AclCall([&]() -> absl::Status {
    if (desc == nullptr) return NullParameter("allocator_desc");
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
  if (desc == nullptr) return NullParameter("allocator_desc");
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
    return absl::InvalidArgumentError(absl::StrCat("the allocator_desc has no ", missing, " set"));
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

aclError aclrtAllocatorDestroyDesc(aclrtAllocatorDesc allocator_desc) {
  return AclCall([&]() -> absl::Status {
    if (allocator_desc == nullptr) return NullParameter("allocator_desc");
    const std::lock_guard lock(GetRegistry().mutex);
    return GetRegistry().descs.erase(allocator_desc) == 1 ? absl::OkStatus() : packalloc::UnknownDesc();
  });
}

aclError aclrtAllocatorSetObjToDesc(aclrtAllocatorDesc allocator_desc, aclrtAllocator allocator) {
  return Set(allocator_desc, &AclCallbacks::object, allocator, "allocator");
}

aclError aclrtAllocatorSetAllocFuncToDesc(aclrtAllocatorDesc allocator_desc, aclrtAllocatorAllocFunc func) {
  return Set(allocator_desc, &AclCallbacks::alloc, func, "func");
}

aclError aclrtAllocatorSetAllocAdviseFuncToDesc(aclrtAllocatorDesc allocator_desc, aclrtAllocatorAllocAdviseFunc func) {
  return Set(allocator_desc, &AclCallbacks::alloc_advise, func, "func");
}

aclError aclrtAllocatorSetFreeFuncToDesc(aclrtAllocatorDesc allocator_desc, aclrtAllocatorFreeFunc func) {
  return Set(allocator_desc, &AclCallbacks::free, func, "func");
}

aclError aclrtAllocatorSetGetAddrFromBlockFuncToDesc(aclrtAllocatorDesc allocator_desc,
                                                     aclrtAllocatorGetAddrFromBlockFunc func) {
  return Set(allocator_desc, &AclCallbacks::get_addr_from_block, func, "func");
}

aclError aclrtAllocatorRegister(aclrtStream stream, aclrtAllocatorDesc allocator_desc) {
  return AclCall([&] { return packalloc::Register(stream, allocator_desc); });
}

aclError aclrtAllocatorUnregister(aclrtStream stream) {
  return AclCall([&]() -> absl::Status {
    if (stream == nullptr) return NullParameter("stream");
    const std::lock_guard lock(GetRegistry().mutex);
    GetRegistry().streams.erase(stream);
    return absl::OkStatus();
  });
}

aclError aclrtAllocatorGetByStream(aclrtStream stream, aclrtAllocatorDesc* allocator_desc, aclrtAllocator* allocator,
                                   aclrtAllocatorAllocFunc* alloc_func, aclrtAllocatorFreeFunc* free_func,
                                   aclrtAllocatorAllocAdviseFunc* alloc_advise_func,
                                   aclrtAllocatorGetAddrFromBlockFunc* get_addr_from_block_func) {
  return AclCall([&]() -> absl::Status {
    if (allocator_desc == nullptr) return NullParameter("allocator_desc");
    if (stream == nullptr) return NullParameter("stream");
    const std::lock_guard lock(GetRegistry().mutex);
    const auto found = GetRegistry().streams.find(stream);
    if (found == GetRegistry().streams.end()) {
      return absl::InvalidArgumentError("no allocator is registered with the stream");
    }
    const AclCallbacks& callbacks = found->second.callbacks;
    *allocator_desc = found->second.desc;
    if (allocator != nullptr) *allocator = callbacks.object;
    if (alloc_func != nullptr) *alloc_func = callbacks.alloc;
    if (free_func != nullptr) *free_func = callbacks.free;
    if (alloc_advise_func != nullptr) *alloc_advise_func = callbacks.alloc_advise;
    if (get_addr_from_block_func != nullptr) *get_addr_from_block_func = callbacks.get_addr_from_block;
    return absl::OkStatus();
  });
}

}  // extern "C"
