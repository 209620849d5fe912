// The attentions that scan: GLA, Gated DeltaNet, Mamba, Mamba-2.
#include <cmath>

#include "mhla/core/error.h"
#include "mhla/modules/scans.h"
#include "mhla/modules/zoo/zoo.h"
#include "mhla/modules/zoo/zoo_parts.h"

namespace mhla {
namespace {

constexpr std::int64_t kGateRank = 16;
constexpr double kGateNormalizer = 16.0;
constexpr std::int64_t kMambaStates = 16, kMamba2States = 128, kMamba2Head = 64, kTaps = 4;

torch::Tensor by_heads(const torch::Tensor& x, std::int64_t heads) { return x.unflatten(-1, {heads, -1}); }

torch::Tensor unit_length(const torch::Tensor& x) { return x / (x.square().sum(-1, true) + 1e-6).sqrt(); }

// A convolution over all tokens, or over these behind those that the state has seen.
torch::Tensor convolve(ShortConv& conv, const torch::Tensor& x, const Packed& packed, AttentionState* state,
                       const char* tail) {
  return state == nullptr ? conv(x, packed.positions) : conv->stream(x, state->tensors.at(tail));
}

torch::Tensor* scan_state(AttentionState* state) { return state == nullptr ? nullptr : &state->tensors.at("scan"); }

// States of scans are f32 at least, whatever the weights are.
AttentionState scan_begin(const std::vector<std::int64_t>& shape, const torch::Tensor& like) {
  if (shape[0] < 1) fail("begin: batch is ", shape[0], ", expected at least 1");
  AttentionState state;
  state.positions.assign(static_cast<std::size_t>(shape[0]), 0);
  const torch::ScalarType dtype = like.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  state.tensors["scan"] = torch::zeros(shape, torch::TensorOptions(dtype).device(like.device()));
  return state;
}

void advance(AttentionState& state, std::int64_t tokens) {
  for (std::int64_t& position : state.positions) position += tokens;
}

// dt log-uniform in [0.001, 0.1], through the inverse of softplus: dt + log(1 - exp(-dt)).
torch::Tensor initial_dt_bias(std::int64_t size) {
  const torch::Tensor dt = (torch::rand({size}) * (std::log(0.1) - std::log(0.001)) + std::log(0.001)).exp();
  return dt + (-torch::expm1(-dt)).log();
}

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
