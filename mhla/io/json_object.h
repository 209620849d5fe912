// Files that hold one JSON object: config.json, train.json, state.json.
#pragma once

#include <filesystem>

#include "mhla/core/labelled.h"
#include "mhla/io/json.h"

namespace mhla {

// Anything else in the file is an Error that opens with its path.
inline JsonValue read_json_object(const std::filesystem::path& path) {
  JsonValue value = read_json(path);
  labelled(path.string(), [&] { (void)value.members(); });
  return value;
}

}  // namespace mhla
