// Gradient checkpointing: a part of a network keeps its input alone and computes itself again when its gradient is
// wanted. Gradients have the same bits; the part must compute the same twice, so nothing in it may be random.
#pragma once

#include <functional>
#include <vector>

#include "mhla/modules/torch.h"

namespace mhla {

// body(x), where gradients flow to x and to every parameter that body uses. Without gradients it is just body(x).
torch::Tensor recomputed(const std::function<torch::Tensor(const torch::Tensor&)>& body, const torch::Tensor& x);
// The same of several tensors, which are all that reaches the body from outside but its parameters. The body must own
// what else it needs: it runs again after the caller has gone.
torch::Tensor recomputed(const std::function<torch::Tensor(const std::vector<torch::Tensor>&)>& body,
                         const std::vector<torch::Tensor>& inputs);

}  // namespace mhla
