#include "mhla/train/classify/class_names.h"

#include <algorithm>

#include "mhla/core/error.h"
#include "mhla/core/labelled.h"
#include "mhla/io/fields.h"
#include "mhla/io/file.h"

namespace mhla::train {
namespace {

// What a set calls its classes where it knows no better.
bool is_number(const std::string& name, std::size_t number) {
  return name == std::to_string(number) || name == str("class ", number);
}

}  // namespace

void keep_classes(const std::filesystem::path& run, const std::vector<std::string>& names) {
  write_file(run / kClassesFile, write_json(fields::to_json(names), 2) + "\n");
}

void expect_same_classes(const std::string& command, const std::filesystem::path& run,
                         const std::vector<std::string>& found, const std::string& whose) {
  if (!std::filesystem::exists(run / kClassesFile)) return;
  const std::string file = (run / kClassesFile).string();
  if (std::filesystem::file_size(run / kClassesFile) == 0)
    fail(command, ": ", file, " is empty, expected the names of ", found.size(),
         " classes; without the file classes are compared by number");
  const JsonValue names = read_json(run / kClassesFile);
  if (!names.is_array() || names.size() != found.size())
    fail(command, ": ", file, " has ", names.is_array() ? str(names.size(), " names") : "no list of names",
         ", expected those of the ", found.size(), " classes of ", whose);
  for (std::size_t i = 0; i < found.size(); ++i) {
    const std::string& name = found[i];
    const std::string& expected = labelled(file, [&]() -> const std::string& { return names.at(i).as_string(); });
    if (name != expected && !is_number(name, i) && !is_number(expected, i))
      fail(command, ": ", whose, ": class ", i, " is '", name, "', expected '", expected, "' as in ", file);
  }
}

}  // namespace mhla::train
