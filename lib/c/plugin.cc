#include "packalloc/plugin.h"

#include <dlfcn.h>

#include <condition_variable>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "lib/c/last_error.h"
#include "lib/c/plugin_environment.h"
#include "lib/c/plugin_file.h"
#include "lib/c/sized_struct.h"
#include "lib/env.h"
#include "lib/fork_guard.h"
#include "packalloc/c/plugin.h"
#include "packalloc/c_record.h"
#include "packalloc/registry.h"

namespace packalloc {
namespace {

absl::Status Answer(const packalloc_backend& c, packalloc_status status, const char* function) {
  if (status == PACKALLOC_OK) return absl::OkStatus();
  return StatusFromC(status, c.name, function, c.last_error == nullptr ? nullptr : c.last_error(c.self));
}

absl::StatusOr<PackedAllocator> OpenDevice(const packalloc_backend& c, const OpenRequest& request) {
  if (request.options.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(c.name, " comes from a plugin, which takes no options struct"));
  }
  const packalloc_record* record = nullptr;
  if (absl::Status opened = Answer(c, c.open(c.self, request.target.c_str(), &record), "open"); !opened.ok()) {
    return opened;
  }
  if (record == nullptr) return absl::InternalError(absl::StrCat(c.name, ": open answered OK and gave NULL"));
  absl::StatusOr<Allocator<packalloc_raw_buffer>> read = FromC(*record);
  if (!read.ok()) {
    return absl::InternalError(absl::StrCat(c.name, ": open gave a bad record: ", read.status().message()));
  }
  return Pack(*std::move(read));
}

struct Listing {
  std::vector<DeviceInfo> devices;
  std::exception_ptr failure;  // must not pass through the plugin
};

void Visit(void* user_data, const packalloc_device* device) {
  auto& listing = *static_cast<Listing*>(user_data);
  try {
    absl::StatusOr<packalloc_device> c = ReadStruct(device, "packalloc_device", Unknown::kIgnore);
    DeviceInfo info;
    const auto text = [](const char* s) { return std::string(s == nullptr ? "" : s); };
    if (c.ok()) {
      info.name = text(c->name);
      info.available = c->available != 0;
      info.reason = text(c->reason);
      info.description = text(c->description);
      if (c->has_memory != 0) info.memory = MemoryInfo{c->memory.free_bytes, c->memory.total_bytes};
    } else {
      info.available = false;
      info.reason = std::string(c.status().message());
    }
    listing.devices.push_back(std::move(info));
  } catch (...) {
    listing.failure = std::current_exception();
  }
}

std::vector<DeviceInfo> ListDevices(const packalloc_backend& c) {
  Listing listing;
  absl::Status listed = Answer(c, c.list_devices(c.self, &Visit, &listing), "list_devices");
  if (listing.failure) std::rethrow_exception(listing.failure);
  for (DeviceInfo& device : listing.devices) {
    if (device.name.empty()) device.name = c.name;
  }
  if (!listed.ok()) {
    listing.devices.push_back({.name = c.name, .available = false, .reason = std::string(listed.message())});
  }
  return std::move(listing.devices);
}

struct Unload {
  void operator()(void* library) const { dlclose(library); }
};

// The file was examined: from here on the plugin's code runs.
absl::Status LoadExamined(const std::string& path) {
  // Never searched for: without a slash the dynamic linker would look elsewhere.
  const std::string file = absl::StrContains(path, "/") ? path : absl::StrCat("./", path);
  std::unique_ptr<void, Unload> library(dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL));
  if (library == nullptr) return absl::FailedPreconditionError(absl::StrCat("it cannot be loaded: ", dlerror()));
  auto* const entry = reinterpret_cast<decltype(&packalloc_plugin_backend)>(dlsym(library.get(), kPluginBackendSymbol));
  if (entry == nullptr) return absl::InvalidArgumentError(absl::StrCat("it has no ", kPluginBackendSymbol));
  const packalloc_backend* given = entry();
  if (given == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("its ", kPluginBackendSymbol, " gave NULL: no backend"));
  }
  absl::StatusOr<packalloc_backend> c = ReadStruct(given, "packalloc_backend", Unknown::kIgnore);
  if (!c.ok()) return c.status();
  if (c->name == nullptr) return absl::InvalidArgumentError("packalloc_backend.name is NULL");
  if (c->open == nullptr) return absl::InvalidArgumentError("packalloc_backend.open is NULL");

  Backend backend;
  backend.name = c->name;
  backend.default_rank = c->default_rank;
  backend.open = [c = *c](const OpenRequest& request) { return OpenDevice(c, request); };
  if (c->list_devices != nullptr) backend.devices = [c = *c] { return ListDevices(c); };
  absl::Status registered = Register(std::move(backend));
  // The registry forgets no backend, so the code stays for it and for every buffer.
  if (registered.ok()) static_cast<void>(library.release());
  return registered;
}

}  // namespace

absl::Status LoadPlugin(const std::string& path) {
  std::optional<std::uint32_t> version;
  absl::Status loaded = [&] {
    absl::StatusOr<PluginFile> plugin = ReadPluginFile(path);
    if (!plugin.ok()) return plugin.status();
    version = plugin->abi_version;
    if (*version != PACKALLOC_PLUGIN_ABI_VERSION) {
      return absl::FailedPreconditionError("it was built for another version; build it anew");
    }
    if (!plugin->has_backend) {
      return absl::InvalidArgumentError(absl::StrCat("it exports no function ", kPluginBackendSymbol));
    }
    return LoadExamined(path);
  }();
  if (loaded.ok()) return loaded;
  return {loaded.code(),
          absl::StrCat("plugin '", path, "' (plugin ABI version ", version ? absl::StrCat(*version) : "unknown",
                       ", this library's is ", PACKALLOC_PLUGIN_ABI_VERSION, "): ", loaded.message())};
}

namespace {

// The loading of the environment's plugins, once in the process.
class Loading final : ForkGuarded {
 public:
  Loading() { BeginForkGuard(this, ForkRank::kRegistry); }
  ~Loading() override { EndForkGuard(this); }

  // Whether the caller is to load, and to call End; else it was done, by now at the latest. Where this thread is at it
  // already, by a plugin that uses the registry while it is loaded, there is nothing to do either.
  bool Begin() {
    std::unique_lock lock(mutex_);
    if (by_ == std::this_thread::get_id()) return false;
    ended_.wait(lock, [&] { return by_ == std::thread::id(); });
    if (std::exchange(cut_short_, false)) {
      WarnOnce(
          "environment variable PACKALLOC_PLUGINS: the process was forked while another thread loaded its plugins; "
          "those not loaded by then are missing in the child");
    }
    if (std::exchange(begun_, true)) return false;
    by_ = std::this_thread::get_id();
    return true;
  }

  void End() {
    const std::lock_guard lock(mutex_);
    by_ = std::thread::id();
    ended_.notify_all();
  }

 private:
  void BeforeFork() override { mutex_.lock(); }
  void AfterFork(bool in_child) override {
    if (in_child) {
      ::new (&ended_) std::condition_variable;  // who waited does not exist here
      // Nor does who loaded. Not loaded anew: of a plugin that was half loaded nobody can tell what it has done.
      if (by_ != std::thread::id() && by_ != std::this_thread::get_id()) {
        by_ = std::thread::id();
        cut_short_ = true;
      }
    }
    mutex_.unlock();
  }

  std::mutex mutex_;
  std::condition_variable ended_;
  std::thread::id by_;  // who loads now
  bool begun_ = false;
  bool cut_short_ = false;
};

void LoadOrWarn(absl::string_view path) {
  absl::Status loaded;
  try {
    loaded = LoadPlugin(std::string(path));
  } catch (const std::exception& error) {
    loaded = absl::InternalError(absl::StrCat("plugin '", path, "': ", error.what()));
  } catch (...) {
    loaded = absl::InternalError(absl::StrCat("plugin '", path, "' threw"));
  }
  if (!loaded.ok()) WarnOnce(absl::StrCat("environment variable PACKALLOC_PLUGINS: ", loaded.message()));
}

}  // namespace

void LoadPluginsOfEnvironment() {
  Loading& loading = OneOfTheProcess<Loading>();
  if (!loading.Begin()) return;
  struct End {
    ~End() { loading.End(); }
    Loading& loading;
  };
  const End end{loading};
  const char* paths = secure_getenv("PACKALLOC_PLUGINS");
  if (paths == nullptr) return;
  for (const absl::string_view path : absl::StrSplit(paths, ':', absl::SkipEmpty())) LoadOrWarn(path);
}

}  // namespace packalloc
