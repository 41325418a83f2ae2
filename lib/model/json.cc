#include "lib/model/json.h"

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "lib/parse.h"

namespace packalloc {
namespace {

using nlohmann::json;

// Finds what the parsed document no longer shows: repeated keys, and the depth. The text is parsed a second time for
// the document, because a parser callback makes building it quadratic.
class KeysAndDepth final : public json::json_sax_t {
 public:
  const std::string& problem() const { return problem_; }

  bool null() override { return true; }
  bool boolean(bool /*value*/) override { return true; }
  bool number_integer(number_integer_t /*value*/) override { return true; }
  bool number_unsigned(number_unsigned_t /*value*/) override { return true; }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return true; }
  bool string(string_t& /*value*/) override { return true; }
  bool binary(binary_t& /*value*/) override { return true; }
  bool start_object(std::size_t /*elements*/) override {
    keys_.emplace_back();
    return Open();
  }
  bool key(string_t& key) override {
    if (keys_.back().insert(key).second) return true;
    return Refuse(absl::StrCat("the key ", Quoted(key), " stands twice"));
  }
  bool end_object() override {
    keys_.pop_back();
    --depth_;
    return true;
  }
  bool start_array(std::size_t /*elements*/) override { return Open(); }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool parse_error(std::size_t position, const std::string& /*token*/, const json::exception& /*error*/) override {
    return Refuse(absl::StrCat("it is not JSON (at byte ", position, ")"));
  }

 private:
  static constexpr int kMaxDepth = 16;

  bool Open() { return ++depth_ <= kMaxDepth || Refuse(absl::StrCat("it nests deeper than ", kMaxDepth)); }
  bool Refuse(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }

  std::string problem_;
  std::vector<absl::flat_hash_set<std::string>> keys_;  // of each object that is open
  int depth_ = 0;
};

}  // namespace

absl::StatusOr<json> ParseJson(const std::string& text) {
  // The parser skips the one and takes the other for the end of the text.
  if (absl::StartsWith(text, "\xEF\xBB\xBF")) {
    return absl::InvalidArgumentError("it is not JSON: it begins with a byte order mark");
  }
  if (const std::size_t nul = text.find('\0'); nul != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("it is not JSON: byte ", nul, " is NUL"));
  }
  KeysAndDepth checker;
  if (!json::sax_parse(text, &checker)) return absl::InvalidArgumentError(checker.problem());
  json document = json::parse(text, /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded()) return absl::InvalidArgumentError("it is not JSON");
  return document;
}

}  // namespace packalloc
