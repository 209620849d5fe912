// MHLA in LibTorch operators, as one would write it without kernels: what models are timed against, and a second
// opinion in tests.
#pragma once

#include "mhla/modules/torch.h"
#include "mhla/ops/ops.h"

namespace mhla {

// Blocks of equal size, a shared mix, the paper's normaliser or none, no packed sequences; else an error that says so.
torch::Tensor plain_bidirectional(const ops::AttentionInputs& inputs, const ops::BidirectionalOptions& options);

// RMSNorm of the last axis.
torch::Tensor plain_rms_norm(const torch::Tensor& x, const torch::Tensor& weight, double eps);

}  // namespace mhla
