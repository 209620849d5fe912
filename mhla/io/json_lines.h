// Files of one JSON value a line. Empty lines are passed over.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "mhla/io/json.h"

namespace mhla {

// Gives every value to `take`, with "label: line 3" for errors about it.
void read_json_lines(std::string_view text, const std::string& label,
                     const std::function<void(const std::string& name, const JsonValue& value)>& take);

}  // namespace mhla
