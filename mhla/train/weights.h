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

// A tensor of the file, over the file's memory.
torch::Tensor tensor_in(const Safetensors& file, std::size_t index);
// Where the tensors are in the file, in which they are called `prefix` and their name. What is missing, has another
// shape or another dtype is refused by name; with `all`, so are tensors of the file, under that prefix, that nobody
// asked for.
std::vector<std::size_t> expect_tensors(const Safetensors& file, const std::string& prefix, const NamedTensors& tensors,
                                        bool all = true);
// Copies every tensor from the file, once all are found.
void read_tensors(const Safetensors& file, const std::string& prefix, const NamedTensors& tensors, bool all = true);

}  // namespace mhla::train
