// packalloc devices [--json]: every backend, with its devices or the reason why it has none.
#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "lib/parse.h"
#include "packalloc/registry.h"
#include "tools/command.h"

namespace packalloc {
namespace {

nlohmann::ordered_json Json(const std::vector<DeviceInfo>& devices) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const DeviceInfo& device : devices) {
    nlohmann::ordered_json entry{{"name", device.name}, {"available", device.available}};
    if (!device.available) entry["reason"] = device.reason;
    if (!device.description.empty()) entry["description"] = device.description;
    if (device.memory) {
      entry["free_bytes"] = device.memory->free_bytes;
      entry["total_bytes"] = device.memory->total_bytes;
    }
    nlohmann::ordered_json properties = nlohmann::ordered_json::object();
    for (const auto& [key, value] : device.properties) properties[key] = value;
    if (!properties.empty()) entry["properties"] = std::move(properties);
    list.push_back(std::move(entry));
  }
  return list;
}

std::string Table(const std::vector<DeviceInfo>& devices) {
  std::size_t width = 0;
  for (const DeviceInfo& device : devices) width = std::max(width, Printable(device.name).size());
  std::string text;
  for (const DeviceInfo& device : devices) {
    absl::StrAppendFormat(&text, "%-*s  ", static_cast<int>(width), Printable(device.name));
    if (!device.available) {
      absl::StrAppend(&text, "unavailable: ", Printable(device.reason), "\n");
      continue;
    }
    absl::StrAppend(&text, device.description.empty() ? "available" : Printable(device.description));
    constexpr double kGiB = 1 << 30;
    if (device.memory) {
      absl::StrAppendFormat(&text, ", %.1f of %.1f GiB free", static_cast<double>(device.memory->free_bytes) / kGiB,
                            static_cast<double>(device.memory->total_bytes) / kGiB);
    }
    for (const auto& [key, value] : device.properties)
      absl::StrAppend(&text, ", ", Printable(key), " ", Printable(value));
    absl::StrAppend(&text, "\n");
  }
  return text;
}

}  // namespace

void AddDevicesCommand(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("devices", "List the devices, and why a backend has none");
  const auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "A list of objects for programs");
  command->callback([&chosen, json] {
    chosen = [json]() -> absl::StatusOr<std::string> {
      const std::vector<DeviceInfo> devices = Devices();
      return *json ? Text(Json(devices)) : Table(devices);
    };
  });
}

}  // namespace packalloc
