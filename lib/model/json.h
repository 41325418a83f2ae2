// JSON text into a document, strictly: no duplicate keys, no exceptions.
#ifndef PACKALLOC_LIB_MODEL_JSON_H_
#define PACKALLOC_LIB_MODEL_JSON_H_

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"

namespace packalloc {

// INVALID_ARGUMENT for text that is not JSON, repeats a key of an object, or nests deeper than 16.
absl::StatusOr<nlohmann::json> ParseJson(const std::string& text);

}  // namespace packalloc

#endif  // PACKALLOC_LIB_MODEL_JSON_H_
