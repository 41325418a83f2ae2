#include "lib/model/json.h"

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "lib/parse.h"

namespace packalloc {

absl::StatusOr<nlohmann::json> ParseJson(const std::string& text) {
  using nlohmann::json;
  constexpr int kMostDepth = 16;
  std::vector<std::set<std::string>> keys;  // of each object that is open
  std::string problem;
  const auto check = [&](int depth, json::parse_event_t event, json& value) {
    if (depth > kMostDepth && problem.empty()) problem = absl::StrCat("it nests deeper than ", kMostDepth);
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key) {
      const auto& key = value.get_ref<const std::string&>();
      if (!keys.back().insert(key).second && problem.empty())
        problem = absl::StrCat("the key ", Quoted(key), " stands twice");
    }
    return problem.empty();  // what is thrown away need not be kept
  };
  json document = json::parse(text, check, /*allow_exceptions=*/false);
  if (!problem.empty()) return absl::InvalidArgumentError(problem);
  if (document.is_discarded()) return absl::InvalidArgumentError("it is not JSON");
  return document;
}

}  // namespace packalloc
