#include "packalloc/registry.h"

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/c/plugin_environment.h"
#include "lib/env.h"
#include "lib/fork_guard.h"
#include "lib/parse.h"
#include "lib/registry/builtin_backends.h"
#include "lib/registry/device_name.h"
#include "lib/registry/layer_table.h"
#include "lib/registry/once_map.h"
#include "packalloc/layers/checked.h"

namespace packalloc {
namespace internal {

Backend LeftOutBackend(const std::string& name, const std::string& why) {
  Backend backend;
  backend.name = name;
  const std::string reason = absl::StrCat("not in this build: ", why);
  backend.open = [name, reason](const OpenRequest&) -> absl::StatusOr<PackedAllocator> {
    return absl::UnavailableError(absl::StrCat(name, " is ", reason));
  };
  backend.devices = [name, reason] {
    return std::vector<DeviceInfo>{{.name = name, .available = false, .reason = reason}};
  };
  return backend;
}

}  // namespace internal

namespace {

using BackendPointer = std::shared_ptr<const Backend>;

class Registry final : private ForkGuarded {
 public:
  Registry() {
    for (Backend& backend : internal::BuiltinBackends()) {
      backends_.push_back(std::make_shared<const Backend>(std::move(backend)));
    }
    BeginForkGuard(this, ForkRank::kRegistry);
  }
  ~Registry() override { EndForkGuard(this); }

  // Allocators may be opened and used while the program exits.
  static Registry& Get() { return OneOfTheProcess<Registry>(); }

  std::vector<BackendPointer> backends() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return backends_;
  }

  absl::StatusOr<BackendPointer> Find(const DeviceName& name, absl::string_view text) {
    std::vector<std::string> known;
    for (const BackendPointer& backend : backends()) {
      if (backend->name == name.backend) return backend;
      known.push_back(backend->name);
    }
    return absl::NotFoundError(absl::StrCat("device name ", Quoted(text), ": there is no backend ",
                                            Quoted(name.backend), "; known: ", absl::StrJoin(known, ", ")));
  }

  absl::Status Add(Backend backend) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const BackendPointer& other : backends_) {
      if (other->name == backend.name) {
        return absl::AlreadyExistsError(absl::StrCat("there is a backend ", backend.name, " already"));
      }
    }
    backends_.push_back(std::make_shared<const Backend>(std::move(backend)));
    default_name_.reset();
    return absl::OkStatus();
  }

  std::optional<std::string> default_name() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return default_name_;
  }
  void set_default_name(std::optional<std::string> name) {
    const std::lock_guard<std::mutex> lock(mutex_);
    default_name_ = std::move(name);
  }

  OnceMap& opened() { return opened_; }

 private:
  void BeforeFork() override { mutex_.lock(); }
  void AfterFork(bool /*in_child*/) override { mutex_.unlock(); }

  std::mutex mutex_;
  std::vector<BackendPointer> backends_;
  std::optional<std::string> default_name_;
  OnceMap opened_;
};

// What of a name is settled before any device is touched.
struct Resolved {
  DeviceName name;  // with the one spelling of its target
  BackendPointer backend;
};

absl::StatusOr<Resolved> Resolve(std::string_view text_view) {
  const absl::string_view text(text_view.data(), text_view.size());
  absl::StatusOr<DeviceName> name = ParseDeviceName(text);
  if (!name.ok()) return name.status();
  LoadPluginsOfEnvironment();
  absl::StatusOr<BackendPointer> backend = Registry::Get().Find(*name, text);
  if (!backend.ok()) return backend.status();
  if (absl::Status known = CheckLayers(name->layers); !known.ok()) {
    return absl::Status(known.code(), absl::StrCat("device name ", Quoted(text), ": ", known.message()));
  }
  if ((*backend)->canonical_target) {
    absl::StatusOr<std::string> target = (*backend)->canonical_target(name->target);
    if (!target.ok()) return target.status();
    name->target = *std::move(target);
  }
  return Resolved{*std::move(name), *std::move(backend)};
}

absl::StatusOr<PackedAllocator> OpenBackend(const Resolved& what, std::any options) {
  absl::StatusOr<PackedAllocator> device =
      what.backend->open(OpenRequest{.target = what.name.target, .options = std::move(options)});
  if (device.ok() && !*device) {
    return absl::InternalError(absl::StrCat("backend ", what.name.backend, " gave an empty allocator"));
  }
  return device;
}

// Set while the layers of the environment are made on this thread. What they open themselves (fallback) gets none of
// them: it would open itself without end.
thread_local bool making_layers_of_environment = false;

// A malformed list is worth a warning, not the program's end.
std::vector<LayerName> LayersOfEnvironment() {
  if (making_layers_of_environment) return {};
  const std::optional<std::string> text = EnvString("PACKALLOC_LAYERS");
  if (!text) return {};
  absl::StatusOr<std::vector<LayerName>> layers = ParseLayers(*text);
  absl::Status usable = layers.ok() ? CheckLayers(*layers) : layers.status();
  if (usable.ok()) return *std::move(layers);
  WarnOnce(
      absl::StrCat("environment variable PACKALLOC_LAYERS=", *text, ": ", usable.message(), "; no layer is added"));
  return {};
}

absl::StatusOr<PackedAllocator> Layered(const PackedAllocator& device, const DeviceName& name,
                                        const std::vector<LayerName>& more) {
  absl::StatusOr<PackedAllocator> layered = ApplyLayers(device, name.layers);
  if (!layered.ok() || more.empty()) return layered;
  struct Making {
    Making() { making_layers_of_environment = true; }
    ~Making() { making_layers_of_environment = false; }
  };
  auto topped = [&] {
    const Making making;
    return ApplyLayers(*layered, more);
  }();
  if (topped.ok()) return topped;
  WarnOnce(absl::StrCat("environment variable PACKALLOC_LAYERS: on ", ToString(name), ": ", topped.status().message(),
                        "; no layer is added"));
  return layered;
}

}  // namespace

absl::StatusOr<PackedAllocator> Open(std::string_view name) {
  absl::StatusOr<Resolved> what = Resolve(name);
  if (!what.ok()) return what.status();
  const std::vector<LayerName> more = LayersOfEnvironment();

  if (!what->backend->shared) {
    absl::StatusOr<PackedAllocator> device = OpenBackend(*what, std::any());
    return device.ok() ? Layered(*device, what->name, more) : device;
  }
  DeviceName bare = what->name;
  bare.layers.clear();
  OnceMap& opened = Registry::Get().opened();
  const auto open_bare = [&] {
    return opened.GetOrMake(ToString(bare), [&] { return OpenBackend(*what, std::any()); });
  };
  DeviceName full = what->name;
  full.layers.insert(full.layers.end(), more.begin(), more.end());
  if (full.layers.empty()) return open_bare();
  return opened.GetOrMake(ToString(full), [&]() -> absl::StatusOr<PackedAllocator> {
    absl::StatusOr<PackedAllocator> device = open_bare();
    if (!device.ok()) return device;
    return Layered(*device, what->name, more);
  });
}

absl::StatusOr<PackedAllocator> Open(std::string_view name, std::any options) {
  absl::StatusOr<Resolved> what = Resolve(name);
  if (!what.ok()) return what.status();
  // Options may say which device where the name does not ("CL" with a queue), so the target goes as it was written.
  if (absl::StatusOr<DeviceName> written = ParseDeviceName(absl::string_view(name.data(), name.size())); written.ok()) {
    what->name.target = std::move(written->target);
  }
  absl::StatusOr<PackedAllocator> device = OpenBackend(*what, std::move(options));
  if (!device.ok()) return device;
  return Layered(*device, what->name, LayersOfEnvironment());
}

std::vector<DeviceInfo> Devices() {
  LoadPluginsOfEnvironment();
  std::vector<DeviceInfo> all;
  for (const BackendPointer& backend : Registry::Get().backends()) {
    std::vector<DeviceInfo> devices;
    // One backend that breaks its promise does not hide the others.
    try {
      devices = backend->devices ? backend->devices() : std::vector<DeviceInfo>{{.name = backend->name}};
    } catch (const std::exception& error) {
      devices = {{.name = backend->name,
                  .available = false,
                  .reason = absl::StrCat("listing its devices failed: ", error.what())}};
    }
    if (devices.empty()) devices = {{.name = backend->name, .available = false, .reason = "it lists no devices"}};
    std::move(devices.begin(), devices.end(), std::back_inserter(all));
  }
  return all;
}

absl::StatusOr<PackedAllocator> Default() {
  if (const std::optional<std::string> named = EnvString("PACKALLOC_DEVICE")) {
    absl::StatusOr<PackedAllocator> device = Open(*named);
    if (device.ok()) return device;
    return absl::Status(device.status().code(), Printable(absl::StrCat("environment variable PACKALLOC_DEVICE=", *named,
                                                                       ": ", device.status().message())));
  }
  LoadPluginsOfEnvironment();
  Registry& registry = Registry::Get();
  if (const std::optional<std::string> chosen = registry.default_name()) return Open(*chosen);

  std::vector<BackendPointer> candidates = registry.backends();
  candidates.erase(std::remove_if(candidates.begin(), candidates.end(),
                                  [](const BackendPointer& backend) { return backend->default_rank <= 0; }),
                   candidates.end());
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const BackendPointer& a, const BackendPointer& b) { return a->default_rank < b->default_rank; });
  std::vector<std::string> reasons;
  for (const BackendPointer& backend : candidates) {
    absl::StatusOr<PackedAllocator> device = Open(backend->name);
    if (device.ok()) {
      registry.set_default_name(backend->name);
      return device;
    }
    reasons.push_back(absl::StrCat(backend->name, ": ", std::string(device.status().message())));
  }
  return absl::UnavailableError(absl::StrCat("no device works",
                                             reasons.empty() ? ": this build has no backend to choose from" : "; ",
                                             absl::StrJoin(reasons, "; ")));
}

absl::Status Register(Backend backend) {
  if (!IsBackendName(backend.name)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a backend cannot be called ", Quoted(backend.name),
                     ": a name is upper-case letters and digits, starting with a letter"));
  }
  if (!backend.open) {
    return absl::InvalidArgumentError(absl::StrCat("backend ", backend.name, " has no open function"));
  }
  return Registry::Get().Add(std::move(backend));
}

void Shutdown() {
  Registry::Get().set_default_name(std::nullopt);
  std::vector<std::weak_ptr<CheckedControl>> checked;
  {
    // Released at the end of the block, without a lock: a backend may open and close what it likes.
    const std::map<std::string, PackedAllocator> forgotten = Registry::Get().opened().Take();
    for (const auto& [name, device] : forgotten) checked.push_back(Find<CheckedControl>(device));
  }
  for (const std::weak_ptr<CheckedControl>& kept_by_a_buffer : checked) {
    if (const std::shared_ptr<CheckedControl> control = kept_by_a_buffer.lock()) control->ReportLeaks();
  }
}

}  // namespace packalloc
