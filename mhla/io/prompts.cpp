#include "mhla/io/prompts.h"

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "mhla/core/error.h"
#include "mhla/io/file.h"
#include "mhla/io/json_lines.h"

namespace mhla {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";  // of editors

void read_prompts(const std::string& command, const std::string& path, std::vector<std::string>& prompts) {
  const std::vector<std::byte> bytes = read_file(path, std::uint64_t{1} << 30);
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (std::filesystem::path(path).extension() == ".jsonl") {
    read_json_lines(text, path, [&](const std::string& name, const JsonValue& row) {
      const JsonValue* prompt = row.is_object() ? row.find("prompt") : nullptr;
      if (prompt == nullptr || !prompt->is_string()) fail(name, ": expected an object with a string \"prompt\"");
      prompts.push_back(prompt->as_string());
    });
  } else {
    if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
    while (!text.empty()) {
      const std::string_view line = text.substr(0, text.find('\n'));
      if (line.find_first_not_of(" \t\r") != std::string_view::npos)
        prompts.emplace_back(line.ends_with('\r') ? line.substr(0, line.size() - 1) : line);
      text.remove_prefix(std::min(line.size() + 1, text.size()));
    }
  }
  if (prompts.empty()) fail(command, ": ", path, " has no prompts");
}

}  // namespace mhla
