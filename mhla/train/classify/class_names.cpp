#include "mhla/train/classify/class_names.h"

#include <algorithm>

#include "mhla/core/error.h"
#include "mhla/core/labelled.h"
#include "mhla/io/file.h"
#include "mhla/io/json.h"

namespace mhla::train {
namespace {

// What a set calls its classes where it knows no better.
bool is_number(const std::string& name, std::size_t number) {
  return name == std::to_string(number) || name == str("class ", number);
}

}  // namespace

void keep_classes(const std::filesystem::path& run, const ImageSet& set) {
  JsonValue names = JsonValue::array();
  for (const std::string& name : set.class_names()) names.push(name);
  write_file(run / kClassesFile, write_json(names, 2) + "\n");
}

void expect_same_classes(const std::string& command, const std::filesystem::path& run, const ImageSet& set) {
  if (!std::filesystem::exists(run / kClassesFile)) return;
  const std::string file = (run / kClassesFile).string();
  if (std::filesystem::file_size(run / kClassesFile) == 0)
    fail(command, ": ", file, " is empty, expected the names of ", set.classes(),
         " classes; without the file classes are compared by number");
  const JsonValue names = read_json(run / kClassesFile);
  if (!names.is_array() || names.size() != set.class_names().size())
    fail(command, ": ", file, " has ", names.is_array() ? str(names.size(), " names") : "no list of names",
         ", expected those of the ", set.classes(), " classes of ", set.name());
  for (std::size_t i = 0; i < std::min(names.size(), set.class_names().size()); ++i) {
    const std::string& name = set.class_names()[i];
    const std::string& expected = labelled(file, [&]() -> const std::string& { return names.at(i).as_string(); });
    if (name != expected && !is_number(name, i) && !is_number(expected, i))
      fail(command, ": ", set.name(), ": class ", i, " is '", name, "', expected '", expected, "' as in ", file);
  }
}

}  // namespace mhla::train
