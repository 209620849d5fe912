// Where a command writes. For people: aligned tables on stdout. For programs (--json): one JSON object
// per line on stdout, while the text for people moves to stderr.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "mhla/io/json.h"

namespace mhla::apps {

class Output {
 public:
  explicit Output(bool json) : json_(json), people_(json ? stderr : stdout) {}

  [[nodiscard]] bool json() const { return json_; }
  void line(std::string_view text = {}) const;  // for people
  void row(const JsonValue& object) const;      // for programs; nothing without --json
  void progress(std::string_view text) const;   // a line on stderr that the next one replaces; only on a terminal
  void progress_done() const;                   // wipes it, and the ^C that a terminal puts behind it

 private:
  bool json_;
  std::FILE* people_;
};

// Columns are as wide as said here, so rows can be printed as they come. A negative width aligns to the left.
class TextTable {
 public:
  struct Column {
    std::string name;
    int width;
  };
  TextTable(const Output& output, std::vector<Column> columns) : output_(output), columns_(std::move(columns)) {}
  void head() const;
  void row(const std::vector<std::string>& cells) const;

 private:
  const Output& output_;
  std::vector<Column> columns_;
};

JsonValue json_list(const std::vector<std::string>& items);

// One line on stderr, "mhla: ...", which replaces a progress line; line breaks inside become spaces.
void complain(std::string_view text);

// Writes what is buffered; false when stdout could not take it (a full disk, a closed pipe).
bool flush_output();

// For work that is worth more than its text, such as a training: goes on when nobody reads stdout any more.
void outlive_readers();

}  // namespace mhla::apps
