// Gradient checkpointing: a part of a network keeps its input alone and computes itself again when its gradient is
// wanted. Gradients have the same bits; the part must compute the same twice, so nothing in it may be random.
#pragma once

#include <functional>

#include "mhla/modules/torch.h"

namespace mhla {

// body(x), where gradients flow to x and to every parameter that body uses. Without gradients it is just body(x).
torch::Tensor recomputed(const std::function<torch::Tensor(const torch::Tensor&)>& body, const torch::Tensor& x);

}  // namespace mhla
