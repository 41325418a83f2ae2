// Streams of devices, allocators over them, and copies between them.
#include <any>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "lib/fork_guard.h"
#include "lib/interop/acl_library/acl_call.h"
#include "lib/interop/acl_object.h"
#include "lib/registry/device_name.h"
#include "packalloc/backends/cuda.h"
#include "packalloc/backends/opencl.h"
#include "packalloc/c/acl.h"
#include "packalloc/copy.h"
#include "packalloc/registry.h"

namespace packalloc {
namespace {

using internal::AclObject;

struct Stream {
  PackedAllocator device;
  std::unique_ptr<char> key{};  // of a created stream: its address is the handle
};

struct DeviceAllocator {
  std::shared_ptr<AclObject> object;
  PackedAllocator device;
};

struct World final : private ForkGuarded {
  World() { BeginForkGuard(this, ForkRank::kCache); }
  std::mutex mutex;  // no device is called under it
  std::map<aclrtStream, Stream> streams;
  std::map<aclrtAllocator, DeviceAllocator> allocators;

 private:
  void BeforeFork() override { mutex.lock(); }
  void AfterFork(bool) override { mutex.unlock(); }
};

// Never destroyed: programs use it while they exit.
World& GetWorld() {
  static auto& world = *new World;
  return world;
}

absl::StatusOr<PackedAllocator> DeviceOf(aclrtStream stream) {
  if (stream == nullptr) return NullParameter("stream");
  const std::lock_guard lock(GetWorld().mutex);
  const auto found = GetWorld().streams.find(stream);
  if (found != GetWorld().streams.end()) return found->second.device;
  return absl::InvalidArgumentError(
      "the stream is of no device: packalloc_acl_create_stream and packalloc_acl_adopt_stream make it one's");
}

absl::Status Create(const char* device, aclrtStream* stream) {
  absl::StatusOr<PackedAllocator> opened = device == nullptr ? Default() : Open(device);
  if (!opened.ok()) return opened.status();
  auto key = std::make_unique<char>();
  aclrtStream handle = key.get();
  const std::lock_guard lock(GetWorld().mutex);
  GetWorld().streams.insert_or_assign(handle, Stream{*std::move(opened), std::move(key)});
  *stream = handle;
  return absl::OkStatus();
}

absl::StatusOr<PackedAllocator> OpenOver(const char* device, aclrtStream stream) {
  absl::StatusOr<DeviceName> name = ParseDeviceName(device);
  if (!name.ok()) return name.status();
  if (name->backend == "CUDA") {
    CudaOptions options;
    options.stream = static_cast<CUstream_st*>(stream);
    return Open(device, options);
  }
  if (name->backend == "CL") {
    OpenClOptions options;
    options.queue = static_cast<cl_command_queue>(stream);
    return Open(device, options);
  }
  return Open(device);
}

absl::Status Adopt(const char* device, aclrtStream stream) {
  if (device == nullptr) return NullParameter("device");
  if (stream == nullptr) return NullParameter("stream");
  absl::Status known = absl::AlreadyExistsError("the stream is of a device already");
  if (DeviceOf(stream).ok()) return known;
  absl::StatusOr<PackedAllocator> opened = OpenOver(device, stream);
  if (!opened.ok()) return opened.status();
  const std::lock_guard lock(GetWorld().mutex);
  return GetWorld().streams.try_emplace(stream, Stream{*std::move(opened)}).second ? absl::OkStatus() : known;
}

absl::Status DestroyStream(aclrtStream stream) {
  absl::StatusOr<PackedAllocator> device = DeviceOf(stream);
  if (!device.ok()) return device.status();
  if (absl::Status waited = device->synchronize(); !waited.ok()) return waited;
  aclrtAllocatorUnregister(stream);
  Stream gone;  // ends outside the lock
  const std::lock_guard lock(GetWorld().mutex);
  if (const auto found = GetWorld().streams.find(stream); found != GetWorld().streams.end()) {
    gone = std::move(found->second);
    GetWorld().streams.erase(found);
  }
  return absl::OkStatus();
}

absl::Status CreateAllocator(aclrtStream stream, aclrtAllocator* allocator) {
  absl::StatusOr<PackedAllocator> device = DeviceOf(stream);
  if (!device.ok()) return device.status();
  // All work on the stream goes through its device, whose own free is safe while that is pending.
  absl::StatusOr<std::shared_ptr<AclObject>> object = AclObject::Make(*device, {.free_at_once = true});
  if (!object.ok()) return object.status();
  aclrtAllocator handle = (*object)->callbacks().object;
  const std::lock_guard lock(GetWorld().mutex);
  GetWorld().allocators.insert_or_assign(handle, DeviceAllocator{*std::move(object), *std::move(device)});
  *allocator = handle;
  return absl::OkStatus();
}

absl::Status DestroyAllocator(aclrtAllocator handle) {
  if (handle == nullptr) return NullParameter("allocator");
  std::map<aclrtAllocator, DeviceAllocator>::node_type node;
  {
    const std::lock_guard lock(GetWorld().mutex);
    node = GetWorld().allocators.extract(handle);
  }
  if (node.empty()) {
    return absl::InvalidArgumentError("the allocator is none of packalloc_acl_create_allocator, or was destroyed");
  }
  absl::Status ended = node.mapped().device.synchronize();
  if (ended.ok()) ended = node.mapped().object->End();
  if (!ended.ok()) {
    const std::lock_guard lock(GetWorld().mutex);
    GetWorld().allocators.insert(std::move(node));
  }
  return ended;
}

// ---- copies ----

// The live block that an address lies in.
std::optional<AclObject::Place> Locate(const void* address) {
  std::vector<std::shared_ptr<AclObject>> objects;
  {
    const std::lock_guard lock(GetWorld().mutex);
    for (const auto& [handle, allocator] : GetWorld().allocators) objects.push_back(allocator.object);
  }
  for (const std::shared_ptr<AclObject>& object : objects) {
    if (std::optional<AclObject::Place> place = object->Locate(address)) return place;
  }
  return std::nullopt;
}

enum class Side { kHost, kDevice, kEither };

// The `count` bytes that one side of a copy is, as a buffer; nullopt for the host.
absl::StatusOr<std::optional<BufferRef>> SideOf(Side side, const void* address, std::size_t count, const char* role) {
  std::optional<AclObject::Place> place = Locate(address);
  if (!place) {
    if (side != Side::kDevice) return std::optional<BufferRef>();
    return absl::InvalidArgumentError(absl::StrCat(
        "the ", role, " of aclrtMemcpy lies in no live block of an allocator of packalloc_acl_create_allocator"));
  }
  if (side == Side::kHost) {
    return absl::InvalidArgumentError(absl::StrCat("the ", role,
                                                   " of aclrtMemcpy is a device address, in a live block of ",
                                                   place->allocator.name(), ", but by the aclrtMemcpyKind the host's"));
  }
  const std::size_t rest = place->nbytes - place->offset;
  if (count > rest) {
    return absl::OutOfRangeError(
        absl::StrCat("aclrtMemcpy of ", count, " bytes, but the block has ", rest, " from the ", role, " on"));
  }
  absl::StatusOr<AnyBuf> view = place->allocator.offset(place->buffer, count, place->offset);
  if (!view.ok()) return view.status();
  return BufferRef{place->allocator, *std::move(view)};
}

absl::Status Memcpy(void* dst, std::size_t dest_max, const void* src, std::size_t count, aclrtMemcpyKind kind) {
  if (dst == nullptr) return NullParameter("dst");
  if (src == nullptr) return NullParameter("src");
  if (count > dest_max) {
    return absl::OutOfRangeError(absl::StrCat("aclrtMemcpy of ", count, " bytes to where ", dest_max, " fit"));
  }
  // By kind: where the destination is, where the source.
  static constexpr std::pair<Side, Side> kSides[] = {{Side::kHost, Side::kHost},     {Side::kDevice, Side::kHost},
                                                     {Side::kHost, Side::kDevice},   {Side::kDevice, Side::kDevice},
                                                     {Side::kEither, Side::kEither}, {Side::kDevice, Side::kHost},
                                                     {Side::kDevice, Side::kDevice}, {Side::kDevice, Side::kDevice}};
  if (kind < 0 || kind > ACL_MEMCPY_INTER_DEVICE_TO_DEVICE) {
    return absl::InvalidArgumentError(absl::StrCat("aclrtMemcpy knows no aclrtMemcpyKind ", kind));
  }
  if (count == 0) return absl::OkStatus();
  const auto to = SideOf(kSides[kind].first, dst, count, "dst");
  if (!to.ok()) return to.status();
  const auto from = SideOf(kSides[kind].second, src, count, "src");
  if (!from.ok()) return from.status();
  if (!to->has_value() && !from->has_value()) {
    std::memmove(dst, src, count);
    return absl::OkStatus();
  }
  if (!from->has_value()) return (*to)->allocator.copyin((*to)->buffer, {static_cast<const std::byte*>(src), count});
  if (!to->has_value()) return (*from)->allocator.copyout({static_cast<std::byte*>(dst), count}, (*from)->buffer);
  if (absl::StatusOr<CopyReport> copied = Copy(**to, **from); !copied.ok()) return copied.status();
  return (*to)->allocator.synchronize();
}

// Of the allocator's memory, or else of the stream's device; false where neither is known.
bool AddressIsPointer(aclrtStream stream, aclrtAllocator allocator) {
  const std::lock_guard lock(GetWorld().mutex);
  const auto memory = GetWorld().allocators.find(allocator);
  if (memory != GetWorld().allocators.end()) return memory->second.device.traits().address_is_pointer;
  const auto device = GetWorld().streams.find(stream);
  return device != GetWorld().streams.end() && device->second.device.traits().address_is_pointer;
}

// Calls that give a handle: NULL in it after an error.
template <typename Body>
aclError Giving(void** out, const char* name, Body&& body) {
  return AclCall([&]() -> absl::Status {
    if (out == nullptr) return NullParameter(name);
    *out = nullptr;
    return body();
  });
}

}  // namespace
}  // namespace packalloc

using packalloc::AclCall;
using packalloc::Giving;
using packalloc::internal::AclObject;

extern "C" {

aclError aclrtSynchronizeStream(aclrtStream stream) {
  return AclCall([&]() -> absl::Status {
    absl::StatusOr<packalloc::PackedAllocator> device = packalloc::DeviceOf(stream);
    return device.ok() ? device->synchronize() : device.status();
  });
}

aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus* status) {
  return AclCall([&]() -> absl::Status {
    if (status == nullptr) return packalloc::NullParameter("status");
    absl::StatusOr<packalloc::PackedAllocator> device = packalloc::DeviceOf(stream);
    if (!device.ok()) return device.status();
    if (absl::Status waited = device->synchronize(); !waited.ok()) return waited;
    *status = ACL_STREAM_STATUS_COMPLETE;
    return absl::OkStatus();
  });
}

aclError aclrtMemcpy(void* dst, size_t dest_max, const void* src, size_t count, aclrtMemcpyKind kind) {
  return AclCall([&] { return packalloc::Memcpy(dst, dest_max, src, count, kind); });
}

aclError packalloc_acl_create_stream(const char* device, aclrtStream* stream) {
  return Giving(stream, "stream", [&] { return packalloc::Create(device, stream); });
}

aclError packalloc_acl_adopt_stream(const char* device, aclrtStream stream) {
  return AclCall([&] { return packalloc::Adopt(device, stream); });
}

aclError packalloc_acl_destroy_stream(aclrtStream stream) {
  return AclCall([&] { return packalloc::DestroyStream(stream); });
}

aclError packalloc_acl_create_allocator(aclrtStream stream, aclrtAllocator* allocator) {
  return Giving(allocator, "allocator", [&] { return packalloc::CreateAllocator(stream, allocator); });
}

aclError packalloc_acl_destroy_allocator(aclrtAllocator allocator) {
  return AclCall([&] { return packalloc::DestroyAllocator(allocator); });
}

void* packalloc_acl_alloc(aclrtAllocator allocator, size_t size) {
  return packalloc_acl_alloc_advise(allocator, size, nullptr);
}

void* packalloc_acl_alloc_advise(aclrtAllocator allocator, size_t size, aclrtAllocatorAddr addr) {
  void* block = nullptr;
  AclCall([&]() -> absl::Status {
    const absl::StatusOr<std::shared_ptr<AclObject>> object = AclObject::Find(allocator);
    if (!object.ok()) return object.status();
    const absl::StatusOr<void*> taken = (*object)->Take(size, addr);
    block = taken.value_or(nullptr);
    return taken.status();
  });
  return block;
}

void packalloc_acl_free(aclrtAllocator allocator, aclrtAllocatorBlock block) { AclObject::Free(allocator, block); }

void* packalloc_acl_get_addr_from_block(aclrtAllocatorBlock block) { return AclObject::GetAddrFromBlock(block); }

int packalloc_acl_address_is_pointer(aclrtStream stream, aclrtAllocator allocator) {
  return packalloc::AddressIsPointer(stream, allocator) ? 1 : 0;
}

void packalloc_acl_shutdown(void) {
  AclCall([] {
    packalloc::Shutdown();
    return absl::OkStatus();
  });
}

const char* packalloc_acl_last_error(void) { return packalloc::LastError(); }

}  // extern "C"
