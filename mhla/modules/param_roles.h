// What a parameter is to an optimiser. A module that has parameters which are not plain weights says so here; names are
// its own and mean nothing to anybody else.
#pragma once

#include <map>
#include <string>

#include "mhla/modules/torch.h"

namespace mhla {

enum class ParamRole {
  kWeight,  // of a layer; weight decay applies to it, unless it is a vector
  kTable,   // positions, decay rates: no weight decay
  kMix,     // a mixing matrix: a learning rate and a weight decay of its own
};

class HasParamRoles {
 public:
  virtual ~HasParamRoles() = default;
  [[nodiscard]] virtual std::map<std::string, ParamRole> param_roles() const = 0;  // of its own parameters, by name
};

// The role of every parameter of the model, by its full name ("blocks.0.attn.mix").
std::map<std::string, ParamRole> param_roles(const torch::nn::Module& model);

}  // namespace mhla
