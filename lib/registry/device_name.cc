#include "lib/registry/device_name.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "lib/parse.h"

namespace packalloc {
namespace {

constexpr absl::string_view kSpecial = "+,\"";

bool IsWord(absl::string_view text) {
  return !text.empty() && absl::ascii_isalpha(static_cast<unsigned char>(text[0])) &&
         std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return absl::ascii_isdigit(c) || absl::ascii_islower(c) || c == '_'; });
}

class Parser {
 public:
  Parser(absl::string_view kind, absl::string_view text) : kind_(kind), text_(text) {}

  absl::StatusOr<DeviceName> Device() {
    DeviceName name;
    name.backend = absl::AsciiStrToUpper(Until(":+"));
    if (!IsBackendName(name.backend)) return Fault("a backend's name (letters and digits, as CPU or CUDA)", 0);
    if (Take(':')) {
      if (absl::Status read = Value(":", "a target", name.target); !read.ok()) return read;
    }
    absl::StatusOr<std::vector<LayerName>> layers = Layers();
    if (!layers.ok()) return layers.status();
    name.layers = *std::move(layers);
    return name;
  }

  absl::StatusOr<std::vector<LayerName>> LayersAlone() {
    if (!text_.empty() && text_[0] != '+') {
      std::vector<LayerName> layers(1);
      if (absl::Status read = Layer(layers[0]); !read.ok()) return read;
      absl::StatusOr<std::vector<LayerName>> more = Layers();
      if (!more.ok()) return more.status();
      layers.insert(layers.end(), more->begin(), more->end());
      return layers;
    }
    return Layers();
  }

 private:
  absl::StatusOr<std::vector<LayerName>> Layers() {
    std::vector<LayerName> layers;
    while (at_ < text_.size()) {
      if (!Take('+')) return Fault("+ and a layer, or the end", at_);
      if (absl::Status read = Layer(layers.emplace_back()); !read.ok()) return read;
    }
    return layers;
  }

  absl::Status Layer(LayerName& layer) {
    const std::size_t start = at_;
    layer.name = std::string(Until(":+"));
    if (!IsWord(layer.name)) return Fault("a layer's name (lower-case letters, as lru)", start);
    if (!Take(':')) return absl::OkStatus();
    do {
      const std::size_t key_start = at_;
      std::string key(Until("=+,"));
      if (!IsWord(key) || !Take('=')) return Fault(absl::StrCat("KEY=VALUE for layer ", layer.name), key_start);
      std::string value;
      if (absl::Status read = Value("=", absl::StrCat("a value for ", key), value); !read.ok()) return read;
      if (!layer.parameters.emplace(std::move(key), std::move(value)).second) {
        return Fault(absl::StrCat("each parameter of layer ", layer.name, " once"), key_start);
      }
    } while (Take(','));
    return absl::OkStatus();
  }

  // A target or a parameter's value.
  absl::Status Value(absl::string_view after, const std::string& what, std::string& out) {
    const std::size_t start = at_;
    if (Take('"')) {
      for (; at_ < text_.size() && text_[at_] != '"'; ++at_) {
        if (text_[at_] == '\\' && at_ + 1 < text_.size()) ++at_;
        out.push_back(text_[at_]);
      }
      if (!Take('"')) return Fault("a closing quote", text_.size());
    } else {
      out = std::string(Until(kSpecial));
      if (at_ < text_.size() && text_[at_] == '"') {
        return Fault(absl::StrCat(what, " that is in quotes as a whole or holds none"), at_);
      }
      if (out.empty()) return Fault(absl::StrCat(what, " after ", after), start);
    }
    if (out.find('\0') != std::string::npos) return Fault(absl::StrCat(what, " without a NUL byte"), start);
    return absl::OkStatus();
  }

  absl::string_view Until(absl::string_view stops) {
    const std::size_t start = at_;
    at_ = std::min(text_.find_first_of(stops, at_), text_.size());
    return text_.substr(start, at_ - start);
  }

  bool Take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  absl::Status Fault(absl::string_view expected, std::size_t where) const {
    return absl::InvalidArgumentError(absl::StrCat(
        kind_, " ", Quoted(text_), ": ",
        where == 0 ? std::string() : absl::StrCat("understood ", Quoted(text_.substr(0, where)), ", then "),
        "expected ", expected,
        where < text_.size() ? absl::StrCat(" instead of ", Quoted(text_.substr(where))) : " where the name ends"));
  }

  absl::string_view kind_;
  absl::string_view text_;
  std::size_t at_ = 0;
};

std::string Quote(const std::string& value) {
  if (!value.empty() && value.find_first_of(std::string(kSpecial)) == std::string::npos) return value;
  std::string quoted = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') quoted.push_back('\\');
    quoted.push_back(c);
  }
  return quoted + '"';
}

}  // namespace

absl::StatusOr<DeviceName> ParseDeviceName(absl::string_view text) { return Parser("device name", text).Device(); }

absl::StatusOr<std::vector<LayerName>> ParseLayers(absl::string_view text) {
  return Parser("layers", text).LayersAlone();
}

bool IsBackendName(absl::string_view name) {
  return !name.empty() && absl::ascii_isupper(static_cast<unsigned char>(name[0])) &&
         std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return absl::ascii_isdigit(c) || absl::ascii_isupper(c); });
}

std::string ToString(const DeviceName& name) {
  std::string text = name.backend;
  if (!name.target.empty()) absl::StrAppend(&text, ":", Quote(name.target));
  for (const LayerName& layer : name.layers) {
    absl::StrAppend(&text, "+", layer.name);
    const char* separator = ":";
    for (const auto& [key, value] : layer.parameters) {
      absl::StrAppend(&text, std::exchange(separator, ","), key, "=", Quote(value));
    }
  }
  return text;
}

}  // namespace packalloc
