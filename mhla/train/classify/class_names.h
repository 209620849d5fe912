// Names of the classes a run is trained on: classes.json beside its model, in the order of the model's outputs.
#pragma once

#include <filesystem>

#include "mhla/data/class_names.h"
#include "mhla/data/image_set.h"

namespace mhla::train {

void keep_classes(const std::filesystem::path& run, const std::vector<std::string>& names);
inline void keep_classes(const std::filesystem::path& run, const ImageSet& set) {
  keep_classes(run, set.class_names());
}
// Data whose classes have other names are refused. Classes that only have numbers are not compared, nor runs made
// before there was such a file. Errors open with `command`; `whose` is the name of the data.
void expect_same_classes(const std::string& command, const std::filesystem::path& run,
                         const std::vector<std::string>& names, const std::string& whose);
inline void expect_same_classes(const std::string& command, const std::filesystem::path& run, const ImageSet& set) {
  expect_same_classes(command, run, set.class_names(), set.name());
}

}  // namespace mhla::train
