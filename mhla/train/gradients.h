// The norms of gradients, what they are scaled by, and which one is to blame when it is not finite.
#pragma once

#include <string>
#include <vector>

#include "mhla/train/param_groups.h"

namespace mhla::train {

struct GradientNorms {
  std::vector<std::string> names;      // of the parameters that have a gradient
  torch::Tensor each;                  // [names] f32, where the parameters are
  torch::Tensor total;                 // [] f32
  std::vector<torch::Tensor> clipped;  // [] f32 for every group: the norm it is clipped by
};
// `mix_apart`: the mixing matrices and the rest are clipped by norms of their own. An entry of mix that is nearly 0 has
// a gradient of hundreds where a query meets no other key, and the rest would hardly learn in such a step.
GradientNorms gradient_norms(const std::vector<ParamGroup>& groups, bool mix_apart);

// What the gradients of each group are multiplied by: 1 / weight, and less where its norm is above `clip_norm` then (0:
// never).
std::vector<torch::Tensor> gradient_scales(const GradientNorms& norms, double weight, double clip_norm);

// "the largest gradient is that of head.weight, norm 3.1e+08", or how many are not finite, and the first of them.
std::string blame(const std::vector<std::string>& names, const std::vector<double>& norms);

}  // namespace mhla::train
