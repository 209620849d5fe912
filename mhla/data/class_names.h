// Names of the classes of a model: classes.json beside its weights, a list in the order of the classes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace mhla {

inline constexpr const char* kClassesFile = "classes.json";

// Of a folder; "0", "1", ... where there is no file. Another number of names than `classes` is an Error with the path.
std::vector<std::string> read_class_names(const std::filesystem::path& folder, std::int64_t classes);

}  // namespace mhla
