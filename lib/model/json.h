// JSON text into a document, strictly: no duplicate keys, no exceptions.
#ifndef PACKALLOC_LIB_MODEL_JSON_H_
#define PACKALLOC_LIB_MODEL_JSON_H_

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"

namespace packalloc {

// In time linear in the text. INVALID_ARGUMENT for text that is not JSON (a byte order mark and NUL bytes are not),
// repeats a key of an object, or nests deeper than 16.
absl::StatusOr<nlohmann::json> ParseJson(const std::string& text);

}  // namespace packalloc

#endif  // PACKALLOC_LIB_MODEL_JSON_H_
