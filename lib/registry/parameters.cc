#include "lib/registry/parameters.h"

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace packalloc {

const std::string* Parameters::Take(const std::string& key) {
  known_.push_back(key);
  const auto it = left_.find(key);
  if (it == left_.end()) return nullptr;
  taken_ = std::move(it->second);
  left_.erase(it);
  return &taken_;
}

void Parameters::Refuse(const std::string& key, const std::string& why) {
  if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat("layer ", layer_.name, ": ", key, ": ", why));
}

template <typename T>
T Parameters::Read(const std::string& key, T default_value, absl::StatusOr<T> (*parse)(absl::string_view)) {
  const std::string* text = Take(key);
  if (text == nullptr) return default_value;
  absl::StatusOr<T> value = parse(*text);
  if (value.ok()) return *value;
  Refuse(key, std::string(value.status().message()));
  return default_value;
}

std::uint64_t Parameters::Bytes(const std::string& key, std::uint64_t default_value) {
  return Read(key, default_value, &ParseBytes);
}
std::uint64_t Parameters::Count(const std::string& key, std::uint64_t default_value) {
  return Read(key, default_value, &ParseUint64);
}
double Parameters::Number(const std::string& key, double default_value) {
  return Read(key, default_value, &ParseDouble);
}
bool Parameters::Flag(const std::string& key, bool default_value) { return Read(key, default_value, &ParseFlag); }

std::string Parameters::Text(const std::string& key, const std::string& default_value) {
  const std::string* text = Take(key);
  return text == nullptr ? default_value : *text;
}

absl::Status Parameters::Finish() const {
  if (!status_.ok() || left_.empty()) return status_;
  return absl::InvalidArgumentError(
      absl::StrCat("layer ", layer_.name, " has no parameter ", Quoted(left_.begin()->first),
                   known_.empty() ? "; it has none" : absl::StrCat("; it has ", absl::StrJoin(known_, ", "))));
}

}  // namespace packalloc
