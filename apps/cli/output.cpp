#include "apps/cli/output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

namespace mhla::apps {
namespace {

bool drawn = false;  // whether a progress line stands on the terminal

// Does not throw: flush_output() tells what could not be written.
void write_to(std::FILE* file, std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), file);
  std::fflush(file);
}

}  // namespace

void Output::line(std::string_view text) const {
  progress_done();
  write_to(people_, fmt::format("{}\n", text));
}

void Output::row(const JsonValue& object) const {
  if (!json_) return;
  progress_done();
  write_to(stdout, write_json(object) + "\n");
}

void Output::progress(std::string_view text) const {
  if (isatty(STDERR_FILENO) == 0) return;
  drawn = true;
  write_to(stderr, fmt::format("\r\x1b[K{}", text));
}

void Output::progress_done() const {
  if (isatty(STDERR_FILENO) == 0) return;
  drawn = false;
  write_to(stderr, "\r\x1b[K");
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
  write_to(stderr, fmt::format("{}mhla: {}\n", drawn ? "\r\x1b[K" : "", one_line));
  drawn = false;
}

bool flush_output() { return std::fflush(stdout) == 0 && std::ferror(stdout) == 0; }

void outlive_readers() { std::signal(SIGPIPE, SIG_IGN); }

}  // namespace mhla::apps
