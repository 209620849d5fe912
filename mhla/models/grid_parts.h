// What models of latents share: names with a dot, and blocks of a grid of any size.
#pragma once

#include <memory>
#include <string>

#include "mhla/modules/torch.h"

namespace mhla {

// A module without anything of its own, for names with a dot.
inline std::shared_ptr<torch::nn::Module> add_folder(torch::nn::Module& parent, const std::string& name) {
  return parent.register_module(name, std::make_shared<torch::nn::Module>());
}

// Blocks that have tokens when `count` of them share `tokens`: a small grid may leave the last ones empty.
inline std::int64_t filled_blocks(std::int64_t tokens, std::int64_t count) {
  const std::int64_t size = (tokens + count - 1) / count;
  return (tokens + size - 1) / size;
}

}  // namespace mhla
