// A file of prompts: one a line, blank lines left out, or the field "prompt" of JSON lines.
#pragma once

#include <string>
#include <vector>

namespace mhla {

// Appends them. A file without any is an Error that opens with `command`.
void read_prompts(const std::string& command, const std::string& path, std::vector<std::string>& prompts);

}  // namespace mhla
