// What the attentions that scan share: GLA, Gated DeltaNet, Mamba, Mamba-2.
#pragma once

#include <cmath>

#include "mhla/core/error.h"
#include "mhla/modules/attention_state.h"
#include "mhla/modules/convolutions.h"
#include "mhla/modules/zoo/zoo_parts.h"

namespace mhla {

// A convolution over all tokens, or over these behind those that the state has seen.
inline torch::Tensor convolve(ShortConv& conv, const torch::Tensor& x, const Packed& packed, AttentionState* state,
                              const char* tail) {
  return state == nullptr ? conv(x, packed.positions) : conv->stream(x, state->tensors.at(tail));
}

inline torch::Tensor* scan_state(AttentionState* state) {
  return state == nullptr ? nullptr : &state->tensors.at("scan");
}

// States of scans are f32 at least, whatever the weights are.
inline AttentionState scan_begin(const std::vector<std::int64_t>& shape, const torch::Tensor& like) {
  if (shape[0] < 1) fail("begin: batch is ", shape[0], ", expected at least 1");
  AttentionState state;
  state.positions.assign(static_cast<std::size_t>(shape[0]), 0);
  const torch::ScalarType dtype = like.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  state.tensors["scan"] = torch::zeros(shape, torch::TensorOptions(dtype).device(like.device()));
  return state;
}

inline void advance(AttentionState& state, std::int64_t tokens) {
  for (std::int64_t& position : state.positions) position += tokens;
}

// dt log-uniform in [0.001, 0.1], through the inverse of softplus: dt + log(1 - exp(-dt)).
inline torch::Tensor initial_dt_bias(std::int64_t size) {
  const torch::Tensor dt = (torch::rand({size}) * (std::log(0.1) - std::log(0.001)) + std::log(0.001)).exp();
  return dt + (-torch::expm1(-dt)).log();
}

}  // namespace mhla
