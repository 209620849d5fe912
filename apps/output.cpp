#include "apps/output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>

namespace mhla::apps {

void Output::line(std::string_view text) const {
  progress_done();
  fmt::print(people_, "{}\n", text);
  std::fflush(people_);
}

void Output::row(const JsonValue& object) const {
  if (!json_) return;
  progress_done();
  fmt::print(stdout, "{}\n", write_json(object));
  std::fflush(stdout);
}

void Output::progress(std::string_view text) const {
  if (isatty(STDERR_FILENO) == 0) return;
  fmt::print(stderr, "\r\x1b[K{}", text);
  std::fflush(stderr);
}

void Output::progress_done() const {
  if (isatty(STDERR_FILENO) == 0) return;
  fmt::print(stderr, "\r\x1b[K");
  std::fflush(stderr);
}

void TextTable::head() const {
  std::vector<std::string> names;
  for (const Column& column : columns_) names.push_back(column.name);
  row(names);
}

void TextTable::row(const std::vector<std::string>& cells) const {
  std::string text;
  for (std::size_t i = 0; i < cells.size() && i < columns_.size(); ++i) {
    const int width = columns_[i].width;
    if (i > 0) text += "  ";
    text += width < 0 ? fmt::format("{:<{}}", cells[i], -width) : fmt::format("{:>{}}", cells[i], width);
  }
  text.erase(text.find_last_not_of(' ') + 1);
  output_.line(text);
}

JsonValue json_list(const std::vector<std::string>& items) {
  JsonValue list = JsonValue::array();
  for (const std::string& item : items) list.push(item);
  return list;
}

void complain(std::string_view text) {
  std::string one_line;
  for (const char c : text) {
    const bool space = c == '\n' || c == '\r' || c == '\t' || c == ' ';
    if (!space) one_line += c;
    if (space && !one_line.empty() && one_line.back() != ' ') one_line += ' ';
  }
  one_line.erase(one_line.find_last_not_of(' ') + 1);
  fmt::print(stderr, "mhla: {}\n", one_line);
}

bool flush_output() { return std::fflush(stdout) == 0 && std::ferror(stdout) == 0; }

}  // namespace mhla::apps
