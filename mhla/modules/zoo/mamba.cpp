#include "mhla/modules/zoo/mamba.h"

#include <cmath>

#include "mhla/modules/scans.h"
#include "mhla/modules/zoo/scan_parts.h"

namespace mhla {

MambaAttentionImpl::MambaAttentionImpl(const AttentionConfig& c) : inner_(2 * c.dim), rank_((c.dim + 15) / 16) {
  in_ = register_module("in_proj", plain_linear(c.dim, 2 * inner_, false));
  conv_ = register_module("conv1d", ShortConv(inner_, kTaps, /*bias=*/true));
  x_ = register_module("x_proj", plain_linear(inner_, rank_ + 2 * kMambaStates, false));
  dt_ = register_module("dt_proj", plain_linear(rank_, inner_, true));
  A_log_ = register_parameter("A_log", torch::arange(1, kMambaStates + 1, torch::kFloat).log().repeat({inner_, 1}));
  D_ = register_parameter("D", torch::ones({inner_}));
  out_ = register_module("out_proj", plain_linear(inner_, c.dim, false));
  const torch::NoGradGuard no_gradient;
  const double bound = 1.0 / std::sqrt(static_cast<double>(rank_));
  dt_->weight.uniform_(-bound, bound);
  dt_->bias.copy_(initial_dt_bias(inner_));
}

torch::Tensor MambaAttentionImpl::forward(const torch::Tensor& x, const torch::Tensor& cu_seqlens) {
  return run(x, Packed("mamba", x, cu_seqlens), nullptr);
}

AttentionState MambaAttentionImpl::begin(std::int64_t batch) const {
  AttentionState state = scan_begin({batch, inner_, kMambaStates}, in_->weight);
  state.tensors["tail"] = conv_->empty_tail(batch);
  return state;
}

torch::Tensor MambaAttentionImpl::stream(const torch::Tensor& x, AttentionState& state, const torch::Tensor&) {
  const torch::NoGradGuard no_gradient;
  advance(state, x.size(1));
  return run(x, {}, &state);
}

torch::Tensor MambaAttentionImpl::run(const torch::Tensor& tokens, const Packed& packed, AttentionState* state) {
  const std::vector<torch::Tensor> halves = in_(tokens).chunk(2, -1);
  const torch::Tensor x = convolve(conv_, halves[0], packed, state, "tail");
  const std::vector<torch::Tensor> parts = x_(x).split_with_sizes({rank_, kMambaStates, kMambaStates}, -1);
  const torch::Tensor dt = torch::softplus(dt_(parts[0]));
  const torch::Tensor y =
      selective_scan(x, dt, -A_log_.exp(), parts[1], parts[2], packed.first, scan_state(state)) + D_ * x;
  return out_(y * torch::silu(halves[1]));
}

}  // namespace mhla
