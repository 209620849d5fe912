#include "mhla/data/class_names.h"

#include "mhla/core/error.h"
#include "mhla/core/labelled.h"
#include "mhla/io/json.h"

namespace mhla {

std::vector<std::string> read_class_names(const std::filesystem::path& folder, std::int64_t classes) {
  std::vector<std::string> names;
  const std::filesystem::path file = folder / kClassesFile;
  if (!std::filesystem::exists(file)) {
    for (std::int64_t i = 0; i < classes; ++i) names.push_back(std::to_string(i));
    return names;
  }
  const JsonValue saved = read_json(file);
  labelled(file.string(), [&] {
    for (const JsonValue& name : saved.items()) names.push_back(name.as_string());
    if (static_cast<std::int64_t>(names.size()) != classes)
      fail("has ", names.size(), " names, expected the ", classes, " classes of the model");
  });
  return names;
}

}  // namespace mhla
