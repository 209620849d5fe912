// Weights that lie on a grid of tokens or of blocks, for another grid.
#pragma once

#include "mhla/kernels/common/layout.h"
#include "mhla/modules/torch.h"

namespace mhla {

// [1, N, C] positions, bicubic.
torch::Tensor resampled_table(const torch::Tensor& table, const Layout& from, const Layout& to);
// [M, M] or [H, M, M], by resample_mix().
torch::Tensor resampled_mix(const torch::Tensor& mix, const Layout& from, const Layout& to);

}  // namespace mhla
