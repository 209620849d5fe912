// Grid, depth, attention and size of a diffusion transformer, from its configuration alone. Blocks without an MLP
// (Mamba's) are as many as have the parameters of softmax attention's.
#pragma once

#include "mhla/models/dit/dit_config.h"
#include "mhla/models/model_size.h"
#include "mhla/modules/attention.h"
#include "mhla/modules/attention_size.h"
#include "mhla/modules/mhla_attention.h"

namespace mhla {

inline constexpr std::int64_t kTimeChannels = 256;  // sines and cosines of the time

struct DitPlan {
  Layout layout;           // token grid, and MHLA's blocks; others have one block
  std::int64_t depth = 0;  // blocks
  bool mlp = true;
  std::int64_t width = 0;  // of the MLP, or of SwiGLU
  double block_parameters = 0;
};
// Throws where MHLA's blocks do not fit the grid, naming the nearest that do, and where no depth matches.
DitPlan plan_of(const DitConfig& config);

AnyAttention make_dit_attention(const DitConfig& config, const Layout& layout);

ModelSize size_of(const DitConfig& config);  // a sample is an image

}  // namespace mhla
