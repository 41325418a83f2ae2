#include "backends/opencl/context.h"

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "backends/opencl/api.h"
#include "backends/opencl/error.h"
#include "packalloc/allocator.h"

namespace packalloc::opencl {
namespace {

// Every context that a record holds, so that two records over one share its Context.
struct Contexts {
  std::mutex mutex;
  absl::flat_hash_map<cl_context, std::weak_ptr<Context>> by_handle;
  absl::flat_hash_map<cl_platform_id, std::weak_ptr<Context>> by_platform;
};
Contexts& All() {
  static Contexts& contexts = *new Contexts;
  return contexts;
}

}  // namespace

Context::Context(const Api& cl, cl_context handle) : cl_(cl), handle_(handle), transfer_domain_(NewDomain()) {}

// What is still in the table was never freed: its bytes may be in use, so only the context's own reference goes.
Context::~Context() {
  if (!CheckUsable().ok()) return;  // a forked child's lock may be held for ever
  {
    Contexts& all = All();
    const std::lock_guard lock(all.mutex);
    const auto gone = [](const auto& entry) { return entry.second.expired(); };
    absl::erase_if(all.by_handle, gone);
    absl::erase_if(all.by_platform, gone);
  }
  Release([release = cl_.clReleaseContext, handle = handle_] { return release(handle); });
}

// Takes one reference of `handle`, which keeps its value from being another context's meanwhile.
std::shared_ptr<Context> Context::Share(const Api& cl, cl_context handle) {
  std::shared_ptr<Context> fresh(new Context(cl, handle));
  Contexts& all = All();
  const std::lock_guard lock(all.mutex);
  std::weak_ptr<Context>& known = all.by_handle[handle];
  if (std::shared_ptr<Context> context = known.lock()) return context;  // `fresh` gives the reference back, unlocked
  known = fresh;
  return fresh;
}

absl::StatusOr<std::shared_ptr<Context>> Context::ForPlatform(const Api& cl, const Device& device,
                                                              const std::vector<Device>& all_devices) {
  Contexts& all = All();
  {
    const std::lock_guard lock(all.mutex);
    const auto known = all.by_platform.find(device.platform);
    if (known != all.by_platform.end()) {
      if (std::shared_ptr<Context> context = known->second.lock()) return context;
    }
  }
  std::vector<cl_device_id> ids;
  for (const Device& other : all_devices) {
    if (other.platform == device.platform) ids.push_back(other.id);
  }
  const cl_context_properties properties[] = {CL_CONTEXT_PLATFORM,
                                              reinterpret_cast<cl_context_properties>(device.platform), 0};
  cl_int code = CL_SUCCESS;
  cl_context handle =
      cl.clCreateContext(properties, static_cast<cl_uint>(ids.size()), ids.data(), nullptr, nullptr, &code);
  if (code != CL_SUCCESS) return ToStatus(code, "clCreateContext");
  std::shared_ptr<Context> made = Share(cl, handle);
  std::shared_ptr<Context> context = made;
  const std::lock_guard lock(all.mutex);
  std::weak_ptr<Context>& known = all.by_platform[device.platform];
  if (std::shared_ptr<Context> other = known.lock()) {
    context = std::move(other);  // another thread was faster; `made` goes after the lock
  } else {
    known = made;
  }
  return context;
}

absl::StatusOr<std::shared_ptr<Context>> Context::Adopt(const Api& cl, cl_context handle) {
  if (absl::Status status = ToStatus(cl.clRetainContext(handle), "clRetainContext"); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("the context cannot be adopted: ", status.message()));
  }
  return Share(cl, handle);
}

bool Context::Add(cl_mem mem, Root root) {
  const std::lock_guard lock(mutex_);
  const bool mapped = root.mapped != nullptr;
  const bool added = roots_.try_emplace(mem, Entry{std::move(root), false, {}}).second;
  if (added && mapped) ++mapped_;
  return added;
}

std::optional<Root> Context::Find(cl_mem mem) const {
  const std::lock_guard lock(mutex_);
  const auto it = roots_.find(mem);
  return it == roots_.end() ? std::nullopt : std::optional<Root>(it->second.root);
}

std::optional<std::vector<cl_mem>> Context::Remove(cl_mem mem) {
  std::vector<cl_mem> sub_buffers;
  {
    const std::lock_guard lock(mutex_);
    const auto it = roots_.find(mem);
    if (it == roots_.end()) return std::nullopt;
    for (const auto& [range, sub_buffer] : it->second.sub_buffers) sub_buffers.push_back(sub_buffer);
    if (it->second.root.mapped != nullptr) --mapped_;
    roots_.erase(it);
  }
  unclaimed_.notify_all();
  return sub_buffers;
}

std::vector<cl_mem> Context::ListMapped(const Queue* queue) const {
  const std::lock_guard lock(mutex_);
  std::vector<cl_mem> list;
  if (mapped_ == 0) return list;
  for (const auto& [mem, entry] : roots_) {
    if (entry.root.mapped != nullptr && entry.root.owner_id == queue) list.push_back(mem);
  }
  return list;
}

std::optional<Root> Context::Claim(cl_mem mem, const Queue* queue) {
  std::unique_lock lock(mutex_);
  unclaimed_.wait(lock, [this, mem] {
    const auto it = roots_.find(mem);
    return it == roots_.end() || !it->second.claimed;
  });
  const auto it = roots_.find(mem);
  if (it == roots_.end() || !it->second.root.host_memory || it->second.root.owner_id != queue) return std::nullopt;
  it->second.claimed = true;
  return it->second.root;
}

void Context::SetMapped(cl_mem mem, std::byte* mapped) {
  const std::lock_guard lock(mutex_);
  Root& root = roots_.at(mem).root;
  if (root.mapped == nullptr) ++mapped_;
  root.mapped = mapped;
}

void Context::Unclaim(cl_mem mem) {
  {
    const std::lock_guard lock(mutex_);
    roots_.at(mem).claimed = false;
  }
  unclaimed_.notify_all();
}

cl_mem Context::FindSubBuffer(cl_mem root, std::size_t offset, std::size_t nbytes) const {
  const std::lock_guard lock(mutex_);
  const auto entry = roots_.find(root);
  if (entry == roots_.end()) return nullptr;
  const auto it = entry->second.sub_buffers.find({offset, nbytes});
  return it == entry->second.sub_buffers.end() ? nullptr : it->second;
}

cl_mem Context::AddSubBuffer(cl_mem root, std::size_t offset, std::size_t nbytes, cl_mem made) {
  const std::lock_guard lock(mutex_);
  const auto entry = roots_.find(root);
  return entry == roots_.end() ? nullptr : entry->second.sub_buffers.try_emplace({offset, nbytes}, made).first->second;
}

}  // namespace packalloc::opencl
