// packalloc replay FILE [--device NAME]... [--json]: a recorded trace, run for real; several devices side by side.
#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "lib/parse.h"
#include "tools/command.h"
#include "tools/progress.h"
#include "tools/replay.h"

namespace packalloc {
namespace {

nlohmann::ordered_json Json(const ReplayResult& result) {
  return {{"allocations", result.allocations},
          {"hits", result.hits},
          {"misses", result.misses},
          {"evictions", result.evictions},
          {"peak_live_bytes", result.peak_live_bytes},
          {"peak_held_bytes", result.peak_held_bytes},
          {"cached_bytes_end", result.cached_bytes_end},
          {"live_bytes_end", result.live_bytes_end},
          {"ns_per_op", result.ns_per_op}};
}

// A list of objects, one for each device.
nlohmann::ordered_json Json(const std::vector<ReplayResult>& results) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ReplayResult& result : results) {
    nlohmann::ordered_json entry{{"device", result.device}};
    entry.update(Json(result));
    list.push_back(std::move(entry));
  }
  return list;
}

// A row for each number, a column for each device.
std::string Table(const std::string& path, const std::vector<ReplayResult>& results) {
  struct Row {
    const char* label;
    std::function<std::string(const ReplayResult&)> value;
  };
  const auto count = [](std::uint64_t ReplayResult::*member) {
    return [member](const ReplayResult& result) { return absl::StrCat(result.*member); };
  };
  const Row rows[] = {
      {"device", [](const ReplayResult& r) { return Printable(r.device); }},
      {"allocations", count(&ReplayResult::allocations)},
      {"hits", count(&ReplayResult::hits)},
      {"misses", count(&ReplayResult::misses)},
      {"evictions", count(&ReplayResult::evictions)},
      {"hit rate",
       [](const ReplayResult& r) {
         return r.allocations == 0 ? std::string("-")
                                   : absl::StrFormat("%.1f %%", 100.0 * static_cast<double>(r.hits) /
                                                                    static_cast<double>(r.allocations));
       }},
      {"peak live, bytes", count(&ReplayResult::peak_live_bytes)},
      {"peak held, bytes", count(&ReplayResult::peak_held_bytes)},
      {"cached at the end, bytes", count(&ReplayResult::cached_bytes_end)},
      {"live at the end, bytes", count(&ReplayResult::live_bytes_end)},
      {"ns per operation", [](const ReplayResult& r) { return absl::StrFormat("%.1f", r.ns_per_op); }},
  };
  std::string text =
      absl::StrCat(Printable(path), ": ", results[0].allocations, " allocations, ", results[0].frees, " frees");
  if (results[0].recorded_failures != 0)
    absl::StrAppend(&text, ", ", results[0].recorded_failures, " recorded failures");
  absl::StrAppend(&text, "\n\n");
  for (const Row& row : rows) {
    absl::StrAppendFormat(&text, "%-24s", row.label);
    for (const ReplayResult& result : results) {
      constexpr std::size_t kLeast = 14;
      absl::StrAppendFormat(&text, "  %*s", static_cast<int>(std::max(kLeast, Printable(result.device).size())),
                            row.value(result));
    }
    absl::StrAppend(&text, "\n");
  }
  return text;
}

}  // namespace

void AddReplayCommand(CLI::App& app, Command& chosen) {
  struct Options {
    std::string file;
    std::vector<std::string> devices{"CPU"};
    bool json = false;
  };
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("replay", "Run an allocation trace (RMM's log format) through a device");
  command->add_option("FILE", options->file, "The trace: CSV with Thread,Time,Action,Pointer,Size,Stream")->required();
  command->add_option("--device", options->devices, "Such as CPU, CPU+lru:max_bytes=16MiB, CUDA:1+lru; may be repeated")
      ->allow_extra_args(false)
      ->capture_default_str();
  command->add_flag("--json", options->json, "A list of objects for programs, one for each device");
  command->callback([&chosen, options] {
    chosen = [options]() -> absl::StatusOr<std::string> {
      std::vector<ReplayResult> results;
      for (const std::string& device : options->devices) {
        Progress progress("replay on " + device);
        absl::StatusOr<ReplayResult> result =
            Replay(options->file, device, [&progress](double part) { progress.Show(part); });
        if (!result.ok()) return result.status();
        results.push_back(*std::move(result));
      }
      return options->json ? Text(Json(results)) : Table(options->file, results);
    };
  });
}

}  // namespace packalloc
