// packalloc-ratios: measures the library's speed bars on this machine and says which are met.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "bench/bars.h"

int main(int argc, char** argv) {
  namespace bench = packalloc::bench;

  std::vector<bench::Bar> bars = bench::Bars();
  std::vector<std::string> names;
  for (const bench::Bar& bar : bars) names.push_back(bar.name);

  CLI::App app{
      "Measures ratios of times within one run, and compares each with its bar. The exit status is 0 whether a bar is "
      "met or not. Close what else is running; the times of a busy machine vary."};
  bool json = false;
  std::vector<std::string> only;
  app.add_flag("--json", json, "print a list of {name, ratio, bar, met}");
  app.add_option("--only", only, "measure these alone")->check(CLI::IsMember(names));
  CLI11_PARSE(app, argc, argv);

  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  for (const bench::Bar& bar : bars) {
    if (!only.empty() && std::find(only.begin(), only.end(), bar.name) == only.end()) continue;
    const absl::StatusOr<double> ratio = bar.measure();
    if (!ratio.ok()) {
      std::cerr << bar.name << ": not measured: " << ratio.status().message() << '\n';
      continue;
    }
    const bool met = bar.Met(*ratio);
    if (json) {
      results.push_back({{"name", bar.name}, {"ratio", *ratio}, {"bar", bar.bar}, {"met", met}});
      continue;
    }
    std::cout << absl::StrFormat("%-28s %6.3f  (%s %g)  %-5s  %s\n", bar.name, *ratio,
                                 bar.kind == bench::Bar::Kind::kAtMost ? "at most" : "at least", bar.bar,
                                 met ? "met" : "short", bar.what)
              << std::flush;
  }
  if (json) std::cout << results.dump(2) << '\n';
  return 0;
}
