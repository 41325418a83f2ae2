// The C functions on devices and allocators.
#include <any>
#include <cstddef>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "lib/c/handles.h"
#include "lib/c/last_error.h"
#include "lib/c/native.h"
#include "lib/c/outputs.h"
#include "lib/c/sized_struct.h"
#include "lib/c/version.h"
#include "lib/parse.h"
#include "lib/registry/device_name.h"
#include "lib/registry/layer_table.h"
#include "packalloc/backends/cuda.h"
#include "packalloc/backends/opencl.h"
#include "packalloc/c/packalloc.h"
#include "packalloc/c_record.h"
#include "packalloc/layers/lru.h"
#include "packalloc/plugin.h"
#include "packalloc/registry.h"

namespace packalloc {
namespace {

// Gives the handle of a new or shared allocator.
absl::Status Give(absl::StatusOr<PackedAllocator> allocator, packalloc_allocator** out) {
  if (!allocator.ok()) return allocator.status();
  absl::StatusOr<std::uint64_t> number = Allocators().Add(*std::move(allocator));
  if (!number.ok()) return number.status();
  *out = HandleOf<packalloc_allocator>(*number);
  return absl::OkStatus();
}

absl::Status CheckText(const char* text, const char* what) {
  if (text != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the ", what, " is NULL"));
}

// Open(name, options), where the name must be of the backend whose options they are.
absl::Status OpenOver(const char* name, const char* backend, std::any options, packalloc_allocator** out) {
  absl::StatusOr<DeviceName> parsed = ParseDeviceName(name);
  if (!parsed.ok()) return parsed.status();
  if (parsed->backend != backend) {
    return absl::InvalidArgumentError(absl::StrCat("device name ", Quoted(name), " is not of the backend ", backend));
  }
  return Give(Open(name, std::move(options)), out);
}

absl::StatusOr<std::shared_ptr<LruControl>> CacheOf(packalloc_allocator* handle) {
  absl::StatusOr<PackedAllocator> allocator = FindAllocator(NumberOf(handle));
  if (!allocator.ok()) return allocator.status();
  std::shared_ptr<LruControl> cache = Find<LruControl>(*allocator);
  if (cache != nullptr) return cache;
  return absl::UnimplementedError(
      absl::StrCat(allocator->name(), " has no cache; a device opened as ", allocator->name(), "+lru has one"));
}

packalloc_device DeviceToC(const DeviceInfo& info) {
  packalloc_device c = PACKALLOC_DEVICE_INIT;
  c.name = info.name.c_str();
  c.description = info.description.c_str();
  c.reason = info.reason.c_str();
  c.available = info.available ? 1 : 0;
  c.has_memory = info.memory ? 1 : 0;
  if (info.memory) c.memory = {info.memory->free_bytes, info.memory->total_bytes};
  return c;
}

}  // namespace
}  // namespace packalloc

using packalloc::Call;
using packalloc::FindAllocator;
using packalloc::NumberOf;
using packalloc::PackedAllocator;

extern "C" {

const char* packalloc_version(void) { return packalloc::Version(); }

const char* packalloc_last_error(void) { return packalloc::LastError(); }

const char* packalloc_status_name(packalloc_status status) {
  static constexpr const char* kNames[] = {
      "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
      "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
      "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
      "DATA_LOSS", "UNAUTHENTICATED"};
  return status >= 0 && status <= PACKALLOC_UNAUTHENTICATED ? kNames[status] : "UNKNOWN_STATUS";
}

packalloc_status packalloc_list_devices(packalloc_device_visitor visit, void* user_data) {
  return Call([&]() -> absl::Status {
    if (visit == nullptr) return absl::InvalidArgumentError("the visitor is NULL");
    for (const packalloc::DeviceInfo& info : packalloc::Devices()) {
      const packalloc_device device = packalloc::DeviceToC(info);
      visit(user_data, &device);
    }
    return absl::OkStatus();
  });
}

packalloc_status packalloc_load_plugin(const char* path) {
  return Call([&]() -> absl::Status {
    if (absl::Status given = packalloc::CheckText(path, "path"); !given.ok()) return given;
    return packalloc::LoadPlugin(path);
  });
}

packalloc_status packalloc_open(const char* name, packalloc_allocator** out) {
  return packalloc::CallFor(out, [&]() -> absl::Status {
    if (absl::Status given = packalloc::CheckText(name, "device name"); !given.ok()) return given;
    return packalloc::Give(packalloc::Open(name), out);
  });
}

packalloc_status packalloc_open_default(packalloc_allocator** out) {
  return packalloc::CallFor(out, [&] { return packalloc::Give(packalloc::Default(), out); });
}

packalloc_status packalloc_open_cuda(const char* name, const packalloc_cuda_options* options,
                                     packalloc_allocator** out) {
  return packalloc::CallFor(out, [&]() -> absl::Status {
    if (absl::Status given = packalloc::CheckText(name, "device name"); !given.ok()) return given;
    auto c = packalloc::ReadStruct(options, "packalloc_cuda_options", packalloc::Unknown::kRefuse);
    if (!c.ok()) return c.status();
    if (c->allocation > 1) return absl::InvalidArgumentError("packalloc_cuda_options.allocation is neither 0 nor 1");
    if (c->stream != nullptr && c->has_stream == 0) {
      return absl::InvalidArgumentError("packalloc_cuda_options has a stream, but has_stream is 0");
    }
    packalloc::CudaOptions cuda;
    cuda.context = static_cast<CUctx_st*>(c->context);
    if (c->has_stream != 0) cuda.stream = static_cast<CUstream_st*>(c->stream);
    if (c->allocation == 1) cuda.allocation = packalloc::CudaAllocation::kStreamOrdered;
    return packalloc::OpenOver(name, "CUDA", cuda, out);
  });
}

packalloc_status packalloc_open_opencl(const char* name, const packalloc_opencl_options* options,
                                       packalloc_allocator** out) {
  return packalloc::CallFor(out, [&]() -> absl::Status {
    if (absl::Status given = packalloc::CheckText(name, "device name"); !given.ok()) return given;
    auto c = packalloc::ReadStruct(options, "packalloc_opencl_options", packalloc::Unknown::kRefuse);
    if (!c.ok()) return c.status();
    packalloc::OpenClOptions opencl;
    opencl.context = static_cast<cl_context>(c->context);
    opencl.queue = static_cast<cl_command_queue>(c->queue);
    return packalloc::OpenOver(name, "CL", opencl, out);
  });
}

packalloc_status packalloc_pack(const packalloc_record* record, packalloc_allocator** out) {
  return packalloc::CallFor(out, [&]() -> absl::Status {
    if (record == nullptr) return absl::InvalidArgumentError("the packalloc_record is NULL");
    auto read = packalloc::FromC(*record);
    if (!read.ok()) return read.status();
    return packalloc::Give(packalloc::Pack(*std::move(read)), out);
  });
}

packalloc_status packalloc_export(packalloc_allocator* allocator, packalloc_record* out) {
  return Call([&]() -> absl::Status {
    absl::StatusOr<PackedAllocator> found = FindAllocator(NumberOf(allocator));
    if (!found.ok()) return found.status();
    return packalloc::ToC(*found, out);
  });
}

packalloc_status packalloc_add_layers(packalloc_allocator* allocator, const char* layers, packalloc_allocator** out) {
  return packalloc::CallFor(out, [&]() -> absl::Status {
    if (absl::Status given = packalloc::CheckText(layers, "list of layers"); !given.ok()) return given;
    absl::StatusOr<PackedAllocator> inner = FindAllocator(NumberOf(allocator));
    if (!inner.ok()) return inner.status();
    absl::StatusOr<std::vector<packalloc::LayerName>> names = packalloc::ParseLayers(layers);
    if (!names.ok()) return names.status();
    return packalloc::Give(packalloc::ApplyLayers(*std::move(inner), *names), out);
  });
}

packalloc_status packalloc_close(packalloc_allocator* allocator) {
  return Call([&] { return packalloc::Allocators().Close(NumberOf(allocator)); });
}

packalloc_status packalloc_shutdown(void) {
  return Call([] {
    packalloc::Shutdown();
    return absl::OkStatus();
  });
}

packalloc_status packalloc_get_traits(packalloc_allocator* allocator, packalloc_traits* traits) {
  return Call([&]() -> absl::Status {
    absl::StatusOr<PackedAllocator> found = FindAllocator(NumberOf(allocator));
    if (!found.ok()) return found.status();
    packalloc_traits c = PACKALLOC_TRAITS_INIT;
    c.name = found->name().c_str();
    c.min_alignment = found->traits().min_alignment;
    c.max_alloc_bytes = found->traits().max_alloc_bytes;
    c.address_is_pointer = found->traits().address_is_pointer ? 1 : 0;
    c.supports_offset = found->supports_offset() ? 1 : 0;
    c.supports_transfer = found->supports_transfer() ? 1 : 0;
    c.supports_copy_from_disk = found->supports_copy_from_disk() ? 1 : 0;
    c.supports_host_ptr = found->supports_host_ptr() ? 1 : 0;
    return packalloc::WriteStruct(c, traits, "packalloc_traits");
  });
}

packalloc_status packalloc_get_memory_info(packalloc_allocator* allocator, packalloc_memory_info* info) {
  return Call([&]() -> absl::Status {
    if (info == nullptr) return packalloc::NoOutput();
    absl::StatusOr<PackedAllocator> found = FindAllocator(NumberOf(allocator));
    if (!found.ok()) return found.status();
    absl::StatusOr<packalloc::MemoryInfo> memory = found->memory_info();
    if (!memory.ok()) return memory.status();
    *info = {memory->free_bytes, memory->total_bytes};
    return absl::OkStatus();
  });
}

packalloc_status packalloc_synchronize(packalloc_allocator* allocator) {
  return Call([&]() -> absl::Status {
    absl::StatusOr<PackedAllocator> found = FindAllocator(NumberOf(allocator));
    if (!found.ok()) return found.status();
    return found->synchronize();
  });
}

packalloc_status packalloc_native_handle(packalloc_allocator* allocator, const char* key, void** out) {
  return packalloc::CallFor(out, [&]() -> absl::Status {
    if (absl::Status given = packalloc::CheckText(key, "key"); !given.ok()) return given;
    absl::StatusOr<PackedAllocator> found = FindAllocator(NumberOf(allocator));
    if (!found.ok()) return found.status();
    absl::StatusOr<void*> native = packalloc::NativeHandle(*found, key);
    if (!native.ok()) return native.status();
    *out = *native;
    return absl::OkStatus();
  });
}

packalloc_status packalloc_get_cache_stats(packalloc_allocator* allocator, packalloc_cache_stats* stats) {
  return Call([&]() -> absl::Status {
    absl::StatusOr<std::shared_ptr<packalloc::LruControl>> cache = packalloc::CacheOf(allocator);
    if (!cache.ok()) return cache.status();
    const packalloc::LruStats now = (*cache)->stats();
    packalloc_cache_stats c = PACKALLOC_CACHE_STATS_INIT;
    c.hits = now.hits;
    c.misses = now.misses;
    c.evictions = now.evictions;
    c.flushes = now.flushes;
    c.failed_frees = now.failed_frees;
    c.cached_bytes = now.cached_bytes;
    c.cached_buffers = now.cached_buffers;
    c.in_use_bytes = now.in_use_bytes;
    c.in_use_buffers = now.in_use_buffers;
    c.pinned_cached_bytes = now.pinned_cached_bytes;
    c.pinned_in_use_bytes = now.pinned_in_use_bytes;
    c.peak_in_use_bytes = now.peak_in_use_bytes;
    c.peak_held_bytes = now.peak_held_bytes;
    return packalloc::WriteStruct(c, stats, "packalloc_cache_stats");
  });
}

packalloc_status packalloc_trim(packalloc_allocator* allocator, size_t keep_bytes) {
  return Call([&]() -> absl::Status {
    absl::StatusOr<std::shared_ptr<packalloc::LruControl>> cache = packalloc::CacheOf(allocator);
    if (!cache.ok()) return cache.status();
    return (*cache)->Trim(keep_bytes);
  });
}

}  // extern "C"
