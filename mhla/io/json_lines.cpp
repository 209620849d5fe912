#include "mhla/io/json_lines.h"

#include <algorithm>

#include "mhla/core/error.h"

namespace mhla {

void read_json_lines(std::string_view text, const std::string& label,
                     const std::function<void(const std::string& name, const JsonValue& value)>& take) {
  for (int number = 1; !text.empty(); ++number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string name = str(label, ": line ", number);
    take(name, parse_json(line, name));
  }
}

}  // namespace mhla
