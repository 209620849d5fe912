#include "mhla/modules/zoo/gdn.h"

#include <cmath>

#include "mhla/modules/scans.h"
#include "mhla/modules/zoo/scan_parts.h"

namespace mhla {
namespace {

torch::Tensor unit_length(const torch::Tensor& x) { return x / (x.square().sum(-1, true) + 1e-6).sqrt(); }

}  // namespace

// Key heads of 3/4 dim in all, value heads twice as wide: the published proportions.
GdnAttentionImpl::GdnAttentionImpl(const AttentionConfig& c)
    : heads_(c.heads), key_(3 * c.dim / 4 / c.heads), value_(2 * key_) {
  expect_divisible("gdn", 3 * c.dim, 4 * c.heads);
  const std::int64_t keys = heads_ * key_, values = heads_ * value_;
  q_ = register_module("q_proj", plain_linear(c.dim, keys, false));
  k_ = register_module("k_proj", plain_linear(c.dim, keys, false));
  v_ = register_module("v_proj", plain_linear(c.dim, values, false));
  a_ = register_module("a_proj", plain_linear(c.dim, heads_, false));
  b_ = register_module("b_proj", plain_linear(c.dim, heads_, false));
  q_conv_ = register_module("q_conv1d", ShortConv(keys, kTaps));
  k_conv_ = register_module("k_conv1d", ShortConv(keys, kTaps));
  v_conv_ = register_module("v_conv1d", ShortConv(values, kTaps));
  A_log_ = register_parameter("A_log", torch::empty({heads_}).uniform_(1e-3, 16).log());
  dt_bias_ = register_parameter("dt_bias", initial_dt_bias(heads_));
  g_ = register_module("g_proj", plain_linear(c.dim, values, false));
  norm_ = register_module("o_norm", RmsNorm(value_, 1e-6));
  o_ = register_module("o_proj", plain_linear(values, c.dim, false));
}

torch::Tensor GdnAttentionImpl::forward(const torch::Tensor& x, const torch::Tensor& cu_seqlens) {
  return run(x, Packed("gdn", x, cu_seqlens), nullptr);
}

AttentionState GdnAttentionImpl::begin(std::int64_t batch) const {
  AttentionState state = scan_begin({batch, heads_, key_, value_}, q_->weight);
  state.tensors["q_tail"] = q_conv_->empty_tail(batch), state.tensors["k_tail"] = k_conv_->empty_tail(batch);
  state.tensors["v_tail"] = v_conv_->empty_tail(batch);
  return state;
}

torch::Tensor GdnAttentionImpl::stream(const torch::Tensor& x, AttentionState& state, const torch::Tensor&) {
  const torch::NoGradGuard no_gradient;
  advance(state, x.size(1));
  return run(x, {}, &state);
}

torch::Tensor GdnAttentionImpl::run(const torch::Tensor& x, const Packed& packed, AttentionState* state) {
  const torch::Tensor q = unit_length(by_heads(convolve(q_conv_, q_(x), packed, state, "q_tail"), heads_)),
                      k = unit_length(by_heads(convolve(k_conv_, k_(x), packed, state, "k_tail"), heads_)),
                      v = by_heads(convolve(v_conv_, v_(x), packed, state, "v_tail"), heads_);
  const torch::Tensor log_decay = -A_log_.exp() * torch::softplus(a_(x) + dt_bias_);
  const torch::Tensor out = delta_scan(q, k, v, torch::sigmoid(b_(x)), log_decay,
                                       1.0 / std::sqrt(static_cast<double>(key_)), packed.first, scan_state(state));
  return o_(norm_(out, g_(x).view_as(out)).flatten(-2));
}

}  // namespace mhla
