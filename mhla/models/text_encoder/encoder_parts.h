// What the text encoders share: weights that are loaded, never trained from scratch, and may have fewer bits than what
// passes through.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "mhla/modules/torch.h"

namespace mhla {

// `name`.weight of zeros, which take no memory until they are written to.
inline torch::Tensor add_zero_weight(torch::nn::Module& module, const std::string& name,
                                     const std::vector<std::int64_t>& shape, torch::ScalarType dtype) {
  const auto folder = module.register_module(name, std::make_shared<torch::nn::Module>());
  return folder->register_parameter("weight", torch::zeros(shape, dtype), /*requires_grad=*/dtype == torch::kFloat);
}

// x times a weight that may have fewer bits.
inline torch::Tensor narrow_product(const torch::Tensor& x, const torch::Tensor& weight) {
  return torch::linear(x, weight.to(x.scalar_type()));
}

}  // namespace mhla
