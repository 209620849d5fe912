// The norm of all gradients, what it scales them by, and which one is to blame when it is not finite.
#pragma once

#include <string>
#include <vector>

#include "mhla/train/param_groups.h"

namespace mhla::train {

struct GradientNorms {
  std::vector<std::string> names;  // of the parameters that have a gradient
  torch::Tensor each;              // [names] f32, where the parameters are
  torch::Tensor total;             // [] f32
};
GradientNorms gradient_norms(const std::vector<ParamGroup>& groups);

// What gradients are multiplied by: 1 / weight, and less where their norm is above `clip_norm` then (0: never).
torch::Tensor gradient_scale(const torch::Tensor& total, double weight, double clip_norm);

// "the largest gradient is that of head.weight, norm 3.1e+08", or how many are not finite, and the first of them.
std::string blame(const std::vector<std::string>& names, const std::vector<double>& norms);

}  // namespace mhla::train
