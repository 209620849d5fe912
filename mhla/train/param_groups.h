// Parameters by how the optimiser treats them, from the roles that modules give them (modules/param_roles.h):
//   mix       the mixing matrices: a learning rate and a weight decay of their own
//   no_decay  tables, and biases, gains and other vectors (at most one axis longer than 1)
//   decay     the rest
#pragma once

#include <string>
#include <vector>

#include "mhla/train/options.h"
#include "mhla/train/torch.h"

namespace mhla::train {

struct ParamGroup {
  std::string name;
  bool mix = false;       // the mixing matrices
  double lr_scale = 1.0;  // over the learning rate of the step
  double weight_decay = 0.0;
  std::vector<std::string> names;
  std::vector<torch::Tensor> params;
};

// Of every parameter that is trained; groups without any are left out.
std::vector<ParamGroup> param_groups(const torch::nn::Module& model, const TrainOptions& options);

}  // namespace mhla::train
