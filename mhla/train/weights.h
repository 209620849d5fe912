// Tensors of a module in and out of safetensors files, by name.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "mhla/io/safetensors.h"
#include "mhla/train/torch.h"

namespace mhla::train {

using NamedTensors = std::vector<std::pair<std::string, torch::Tensor>>;

NamedTensors tensors_of(const torch::nn::Module& model);  // parameters, then buffers
void write_tensors(const std::filesystem::path& path, const NamedTensors& tensors, const Metadata& metadata = {});

// Copies every tensor from the file, where it is called `prefix` and its name. What is missing, has another shape or
// another dtype is refused by name before anything is copied; with `all`, so are tensors of the file, under that
// prefix, that nobody asked for.
void read_tensors(const Safetensors& file, const std::string& prefix, const NamedTensors& tensors, bool all = true);

}  // namespace mhla::train
