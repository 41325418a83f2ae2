// The subcommands of `packalloc`, one file each: it declares its options, and sets what is to be run when it is chosen.
// What it returns is written to stdout; an error goes to stderr, and the exit status is then 1.
#ifndef PACKALLOC_TOOLS_COMMAND_H_
#define PACKALLOC_TOOLS_COMMAND_H_

#include <CLI/CLI.hpp>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"

namespace packalloc {

using Command = std::function<absl::StatusOr<std::string>()>;

void AddDevicesCommand(CLI::App& app, Command& chosen);
void AddReplayCommand(CLI::App& app, Command& chosen);
void AddLoadCommand(CLI::App& app, Command& chosen);

// Indented, with a line's end. Bytes that are no UTF-8 (a driver's own name) are replaced.
inline std::string Text(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace packalloc

#endif  // PACKALLOC_TOOLS_COMMAND_H_
