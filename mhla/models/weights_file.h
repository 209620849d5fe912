// Tensors in and out of safetensors files, by name.
#pragma once

#include <filesystem>

#include "mhla/io/safetensors.h"
#include "mhla/modules/weight_names.h"

namespace mhla {

// Copies in host memory, in the dtypes of the file.
Weights read_weights(const std::filesystem::path& path);
Weights weights_in(const Safetensors& file);
void write_weights(const std::filesystem::path& path, const Weights& weights, const Metadata& metadata = {});

}  // namespace mhla
