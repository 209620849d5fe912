#include "mhla/train/classify/class_names.h"

#include <algorithm>

#include "mhla/core/error.h"
#include "mhla/core/labelled.h"
#include "mhla/io/file.h"
#include "mhla/io/json.h"

namespace mhla::train {
namespace {

constexpr const char* kClasses = "classes.json";

// What a set calls its classes where it knows no better.
bool is_number(const std::string& name, std::size_t number) {
  return name == std::to_string(number) || name == str("class ", number);
}

}  // namespace

void keep_classes(const std::filesystem::path& run, const ImageSet& set) {
  JsonValue names = JsonValue::array();
  for (const std::string& name : set.class_names()) names.push(name);
  write_file(run / kClasses, write_json(names, 2) + "\n");
}

void expect_same_classes(const std::string& command, const std::filesystem::path& run, const ImageSet& set) {
  if (!std::filesystem::exists(run / kClasses)) return;
  const std::string file = (run / kClasses).string();
  if (std::filesystem::file_size(run / kClasses) == 0)
    fail(command, ": ", file, " is empty, expected the names of ", set.classes(),
         " classes; without the file classes are compared by number");
  const JsonValue names = read_json(run / kClasses);
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

std::vector<std::string> class_names_of(const std::filesystem::path& run, std::int64_t classes) {
  std::vector<std::string> names;
  if (std::filesystem::exists(run / kClasses)) {
    const JsonValue saved = read_json(run / kClasses);
    labelled((run / kClasses).string(), [&] {
      for (const JsonValue& name : saved.items()) names.push_back(name.as_string());
      if (static_cast<std::int64_t>(names.size()) != classes)
        fail("has ", names.size(), " names, expected the ", classes, " classes of the model");
    });
  } else {
    for (std::int64_t i = 0; i < classes; ++i) names.push_back(std::to_string(i));
  }
  return names;
}

}  // namespace mhla::train
