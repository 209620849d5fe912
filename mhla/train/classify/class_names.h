// Names of the classes a run is trained on: classes.json beside its model, in the order of the model's outputs.
#pragma once

#include <filesystem>

#include "mhla/data/class_names.h"
#include "mhla/data/image_set.h"

namespace mhla::train {

void keep_classes(const std::filesystem::path& run, const ImageSet& set);
// Data whose classes have other names are refused. Classes that only have numbers are not compared, nor runs made
// before there was such a file. Errors open with `command`.
void expect_same_classes(const std::string& command, const std::filesystem::path& run, const ImageSet& set);

}  // namespace mhla::train
