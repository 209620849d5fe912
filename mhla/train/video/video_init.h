// A video model that starts from the weights of another one.
#pragma once

#include "mhla/models/wan/wan.h"
#include "mhla/train/init_source.h"

namespace mhla::train {

// Gives `model` the weights of the source. A layer of softmax attention becomes MHLA or linear attention, or the other
// way round: projections and norms are copied; what a layer has beyond that starts as new, the mixing matrix by
// locality and the gate open (weight 0, SiLU of its bias 1), so that a gated model starts as the one without a gate.
// Mixing matrices of other blocks start as new, too. Returns what was changed, a line each. What does not fit is
// refused by the name of the field or the tensor.
std::vector<std::string> start_from(WanImpl& model, const InitSource& source);

}  // namespace mhla::train
