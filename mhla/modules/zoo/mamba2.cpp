#include "mhla/modules/zoo/mamba2.h"

#include <algorithm>

#include "mhla/modules/scans.h"
#include "mhla/modules/zoo/scan_parts.h"

namespace mhla {

Mamba2AttentionImpl::Mamba2AttentionImpl(const AttentionConfig& c)
    : inner_(2 * c.dim), head_(std::min(kMamba2Head, inner_)), heads_(inner_ / head_) {
  expect_divisible("mamba2", inner_, head_);
  const std::int64_t convolved = inner_ + 2 * kMamba2States;
  in_ = register_module("in_proj", plain_linear(c.dim, inner_ + convolved + heads_, false));
  conv_ = register_module("conv1d", ShortConv(convolved, kTaps, /*bias=*/true));
  dt_bias_ = register_parameter("dt_bias", initial_dt_bias(heads_));
  A_log_ = register_parameter("A_log", torch::arange(1, heads_ + 1, torch::kFloat).log());
  D_ = register_parameter("D", torch::ones({heads_}));
  norm_ = register_module("norm", RmsNorm(inner_, 1e-5));
  out_ = register_module("out_proj", plain_linear(inner_, c.dim, false));
}

torch::Tensor Mamba2AttentionImpl::forward(const torch::Tensor& x, const torch::Tensor& cu_seqlens) {
  return run(x, Packed("mamba2", x, cu_seqlens), nullptr);
}

AttentionState Mamba2AttentionImpl::begin(std::int64_t batch) const {
  AttentionState state = scan_begin({batch, heads_, kMamba2States, head_}, in_->weight);
  state.tensors["tail"] = conv_->empty_tail(batch);
  return state;
}

torch::Tensor Mamba2AttentionImpl::stream(const torch::Tensor& x, AttentionState& state, const torch::Tensor&) {
  const torch::NoGradGuard no_gradient;
  advance(state, x.size(1));
  return run(x, {}, &state);
}

torch::Tensor Mamba2AttentionImpl::run(const torch::Tensor& tokens, const Packed& packed, AttentionState* state) {
  const auto parts =
      in_(tokens).split_with_sizes({inner_, inner_ + 2 * kMamba2States, heads_}, -1);  // z, (x, B, C), dt
  const auto xBC =
      convolve(conv_, parts[1], packed, state, "tail").split_with_sizes({inner_, kMamba2States, kMamba2States}, -1);
  const torch::Tensor x = by_heads(xBC[0], heads_), dt = torch::softplus(parts[2] + dt_bias_);  // [B, N, heads]
  const auto shared = [&](const torch::Tensor& y) { return y.unsqueeze(2).expand({-1, -1, heads_, -1}); };
  const torch::Tensor scanned = decayed_scan(shared(xBC[2]), shared(xBC[1]) * dt.unsqueeze(-1), x, -A_log_.exp() * dt,
                                             1.0, packed.first, scan_state(state));
  const torch::Tensor y = (scanned + D_.unsqueeze(-1) * x).flatten(-2);
  return out_(norm_(y * torch::silu(parts[0])));
}

}  // namespace mhla
