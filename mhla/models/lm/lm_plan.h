// Depth and width of a language model's blocks, and how large they are, from its configuration alone. An attention with
// more or fewer weights than softmax attention gets another MLP, one without an MLP more blocks (LmConfig::match).
#pragma once

#include "mhla/models/lm/lm_config.h"

namespace mhla {

struct LmPlan {
  std::int64_t width = 0;  // of the MLP
  std::int64_t depth = 0;  // blocks
  double block_parameters = 0;
};
LmPlan plan_of(const LmConfig& config);  // throws where nothing matches

}  // namespace mhla
