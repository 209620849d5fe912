// Grids, depths and sizes of a classifier's stages, from its configuration alone. Blocks without an MLP (Mamba's) are
// as many as have the parameters of softmax attention's.
#pragma once

#include <string_view>
#include <vector>

#include "mhla/kernels/common/layout.h"
#include "mhla/models/classify/classifier_config.h"

namespace mhla {

inline constexpr std::int64_t kVltFinal = 1024;  // channels before the head of VLT

struct StagePlan {
  Layout layout;               // the token grid, and MHLA's blocks
  std::string_view attention;  // of config.attention, or softmax
  std::int64_t depth = 0;      // blocks
  double block_parameters = 0;
};
// One for deit, four for vlt. Throws where blocks do not fit the grid, and where no depth matches.
std::vector<StagePlan> plan_of(const ClassifierConfig& config);

}  // namespace mhla
