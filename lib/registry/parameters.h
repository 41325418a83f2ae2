// The parameters that a device name gives a layer ("max_bytes=64MiB,policy=gds"), read by the layer's own types.
//
//   absl::StatusOr<PackedAllocator> OpenLimited(const PackedAllocator& inner, Parameters& parameters) {
//     const std::size_t max_bytes = parameters.Bytes("max_bytes", 0);
//     if (absl::Status read = parameters.Finish(); !read.ok()) return read;
//     return Limited(inner, max_bytes);
//   }
#ifndef PACKALLOC_LIB_REGISTRY_PARAMETERS_H_
#define PACKALLOC_LIB_REGISTRY_PARAMETERS_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_join.h"
#include "lib/parse.h"
#include "lib/registry/device_name.h"

namespace packalloc {

// Each getter gives the parameter, or the default where the name does not give it or gives nonsense; Finish then tells
// of the nonsense. One thread at a time.
class Parameters {
 public:
  explicit Parameters(const LayerName& layer) : layer_(layer), left_(layer.parameters) {}

  std::uint64_t Bytes(const std::string& key, std::uint64_t default_value);  // "64MiB"
  std::uint64_t Count(const std::string& key, std::uint64_t default_value);
  double Number(const std::string& key, double default_value);
  bool Flag(const std::string& key, bool default_value);
  std::string Text(const std::string& key, const std::string& default_value);

  // One of a few words.
  template <typename T>
  T Choice(const std::string& key, T default_value, std::initializer_list<std::pair<const char*, T>> choices) {
    const std::string* text = Take(key);
    if (text == nullptr) return default_value;
    std::vector<std::string> words;
    for (const auto& [word, value] : choices) {
      if (*text == word) return value;
      words.emplace_back(word);
    }
    Refuse(key, Quoted(*text) + " is not one of " + absl::StrJoin(words, ", "));
    return default_value;
  }

  // For what a getter cannot see by itself: a parameter that is missing, or out of range.
  void Refuse(const std::string& key, const std::string& why);

  // OK, or INVALID_ARGUMENT naming the layer and the first parameter that was refused or that nobody has asked for
  // (then also those that were asked for). To be called after the getters and before anything is made.
  absl::Status Finish() const;

 private:
  const std::string* Take(const std::string& key);
  template <typename T>
  T Read(const std::string& key, T default_value, absl::StatusOr<T> (*parse)(absl::string_view));

  const LayerName& layer_;
  std::map<std::string, std::string> left_;
  std::vector<std::string> known_;
  std::string taken_;
  absl::Status status_;
};

}  // namespace packalloc

#endif  // PACKALLOC_LIB_REGISTRY_PARAMETERS_H_
