#include "mhla/modules/zoo/gla.h"

#include <cmath>

#include "mhla/modules/scans.h"
#include "mhla/modules/zoo/scan_parts.h"

namespace mhla {
namespace {

constexpr double kGateNormalizer = 16.0;

}  // namespace

GlaAttentionImpl::GlaAttentionImpl(const AttentionConfig& c)
    : heads_(c.heads), key_(c.dim / 2 / c.heads), value_(c.dim / c.heads) {
  expect_divisible("gla", c.dim, 2 * c.heads);
  const std::int64_t keys = heads_ * key_, values = heads_ * value_;
  q_ = register_module("q_proj", plain_linear(c.dim, keys, false));
  k_ = register_module("k_proj", plain_linear(c.dim, keys, false));
  v_ = register_module("v_proj", plain_linear(c.dim, values, false));
  g_ = register_module("g_proj", plain_linear(c.dim, values, false));
  gk_ = register_module(
      "gk_proj", torch::nn::Sequential(plain_linear(c.dim, kGateRank, false), plain_linear(kGateRank, keys, true)));
  norm_ = register_module("g_norm_swish_gate", RmsNorm(value_, 1e-6));
  o_ = register_module("o_proj", plain_linear(values, c.dim, false));
}

torch::Tensor GlaAttentionImpl::forward(const torch::Tensor& x, const torch::Tensor& cu_seqlens) {
  return run(x, Packed("gla", x, cu_seqlens), nullptr);
}

AttentionState GlaAttentionImpl::begin(std::int64_t batch) const {
  return scan_begin({batch, heads_, key_, value_}, q_->weight);
}

torch::Tensor GlaAttentionImpl::stream(const torch::Tensor& x, AttentionState& state, const torch::Tensor&) {
  const torch::NoGradGuard no_gradient;
  advance(state, x.size(1));
  return run(x, {}, &state);
}

torch::Tensor GlaAttentionImpl::run(const torch::Tensor& x, const Packed& packed, AttentionState* state) {
  const torch::Tensor log_decay = torch::log_sigmoid(gk_->forward(x)) / kGateNormalizer;
  const torch::Tensor out =
      gated_scan(by_heads(q_(x), heads_), by_heads(k_(x), heads_), by_heads(v_(x), heads_), by_heads(log_decay, heads_),
                 1.0 / std::sqrt(static_cast<double>(key_)), packed.first, scan_state(state));
  return o_(norm_(out, g_(x).view_as(out)).flatten(-2));
}

}  // namespace mhla
