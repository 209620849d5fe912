// The attentions over a grid that are linear in the tokens: Focused, InLine, MALA, RALA. None has a causal form.
#include <cmath>

#include "mhla/modules/exact.h"
#include "mhla/modules/zoo/zoo.h"
#include "mhla/modules/zoo/zoo_parts.h"
#include "mhla/ops/torch.h"

namespace mhla {
namespace {

constexpr double kEps = 1e-6;
constexpr double kFocusing = 3.0;

void expect_grid(const char* name, const AttentionConfig& c) {
  if (c.layout.rank != 2) fail(name, ": the layout is not a 2D grid, which its convolution needs");
  expect_divisible(name, c.dim, c.heads);
}

torch::Tensor by_heads(const torch::Tensor& x, std::int64_t heads) { return x.unflatten(-1, {heads, -1}); }

double scale_of(const torch::Tensor& q) { return 1.0 / std::sqrt(static_cast<double>(q.size(-1))); }

// q_i^T (1/N) sum_j k_j v_j^T.
torch::Tensor mean_product(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v) {
  const torch::Tensor S = torch::einsum("bnhd,bnhe->bhde", {k, v}) / static_cast<double>(k.size(1));
  return torch::einsum("bnhd,bhde->bnhe", {q, S});
}

const char* name_of(GatedImageAttentionImpl::Core core) {
  constexpr const char* kNames[] = {"mala", "rala", "softmax"};
  return kNames[static_cast<int>(core)];
}

std::pair<torch::Tensor, torch::Tensor> turned(const torch::Tensor& q, const torch::Tensor& k, const RopeTable& table) {
  return table.cos.defined() ? ops::rope(q, k, table) : std::pair(q, k);
}

// f(x) = ||x|| x^p / ||x^p|| over the full width.
torch::Tensor focus(const torch::Tensor& x) {
  const torch::Tensor power = x.pow(kFocusing);
  return power / power.norm(2, -1, true) * x.norm(2, -1, true);
}

}  // namespace

FocusedAttentionImpl::FocusedAttentionImpl(const AttentionConfig& c) : config_(c) {
  expect_grid("focused", c);
  qkv_ = register_module("qkv", plain_linear(c.dim, 3 * c.dim, true));
  proj_ = register_module("proj", plain_linear(c.dim, c.dim, true));
  scale_ = register_parameter("scale", torch::zeros({1, 1, c.dim}));
  positional_encoding_ =
      register_parameter("positional_encoding", torch::zeros({1, c.layout.grid[1] * c.layout.grid[2], c.dim}));
  dwc_ = register_module("dwc", GridConv(c.layout, c.dim / c.heads, 5));
}

AttentionScores FocusedAttentionImpl::scores(const torch::Tensor& x) {
  const std::vector<torch::Tensor> qkv = apply_linear(qkv_, x).chunk(3, -1);
  const torch::Tensor scale = torch::softplus(scale_);
  const auto features = [&](const torch::Tensor& y) {
    return by_heads(focus((y / scale).relu() + kEps), config_.heads).to(torch::kDouble);
  };
  AttentionScores scores;
  scores.q = features(qkv[0]), scores.k = features(qkv[1] + positional_encoding_);
  scores.v = by_heads(qkv[2], config_.heads);
  scores.den = static_cast<double>(x.size(1)) * ((scores.q * scores.k.mean(1, true)).sum(-1) + kEps);
  return scores;
}

torch::Tensor FocusedAttentionImpl::forward(const torch::Tensor& x, const torch::Tensor& cu_seqlens) {
  refuse_packed("focused", cu_seqlens);
  const std::vector<torch::Tensor> qkv = apply_linear(qkv_, x).chunk(3, -1);
  const torch::Tensor scale = torch::softplus(scale_);
  const auto features = [&](const torch::Tensor& y) {
    return by_heads(focus((y / scale).relu() + kEps), config_.heads);
  };
  const torch::Tensor q = features(qkv[0]), k = features(qkv[1] + positional_encoding_),
                      v = by_heads(qkv[2], config_.heads);
  const torch::Tensor den = (q * k.mean(1, true)).sum(-1, true) + kEps;
  // The convolution sees every head as an image of its own.
  const torch::Tensor images = v.transpose(1, 2).flatten(0, 1);  // [B H, N, D]
  const torch::Tensor local = dwc_(images).unflatten(0, {-1, config_.heads}).transpose(1, 2);
  return apply_linear(proj_, (mean_product(q, k, v) / den + local).flatten(-2));
}

InlineAttentionImpl::InlineAttentionImpl(const AttentionConfig& c) : config_(c) {
  expect_grid("inline", c);
  qkv_ = register_module("qkv", plain_linear(c.dim, 3 * c.dim, true));
  proj_ = register_module("proj", plain_linear(c.dim, c.dim, true));
  const auto grouped = [&](std::int64_t out) {
    return torch::nn::Conv1d(torch::nn::Conv1dOptions(c.dim, out, 1).groups(c.heads));
  };
  residual_ = register_module("residual", torch::nn::Sequential(grouped(c.dim), torch::nn::GELU(), grouped(9 * c.dim)));
}

torch::Tensor InlineAttentionImpl::core(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v) {
  const torch::Tensor scaled = k * scale_of(q);
  const torch::Tensor seen = (q * scaled.mean(1, true)).sum(-1, true);
  return mean_product(q, scaled, v) + (1 - seen) * v.mean(1, true);
}

// A[t,s] = (q_t . c k_s + 1 - q_t . mean(c k)) / N: a product of D + 1 features.
AttentionScores InlineAttentionImpl::scores(const torch::Tensor& x) {
  const std::vector<torch::Tensor> qkv = apply_linear(qkv_, x).chunk(3, -1);
  const torch::Tensor q = by_heads(qkv[0], config_.heads).to(torch::kDouble),
                      k = by_heads(qkv[1], config_.heads).to(torch::kDouble) * scale_of(q);
  const torch::Tensor rest = 1 - (q * k.mean(1, true)).sum(-1, true);
  AttentionScores scores;
  scores.q = torch::cat({q, rest}, -1), scores.k = torch::cat({k, torch::ones_like(rest)}, -1);
  scores.v = by_heads(qkv[2], config_.heads);
  scores.den = torch::full({x.size(0), x.size(1), 1}, static_cast<double>(x.size(1)), q.options());
  return scores;
}

torch::Tensor InlineAttentionImpl::forward(const torch::Tensor& x, const torch::Tensor& cu_seqlens) {
  refuse_packed("inline", cu_seqlens);
  const std::vector<torch::Tensor> qkv = apply_linear(qkv_, x).chunk(3, -1);
  const torch::Tensor out =
      core(by_heads(qkv[0], config_.heads), by_heads(qkv[1], config_.heads), by_heads(qkv[2], config_.heads));
  // A 3x3 kernel per image and channel: one depth-wise convolution over B * C channels.
  const std::int64_t B = x.size(0), C = config_.dim, rows = config_.layout.grid[1], columns = config_.layout.grid[2];
  const torch::Tensor kernels = residual_->forward(x.mean(1).unsqueeze(-1)).reshape({B * C, 1, 3, 3});
  const torch::Tensor image = qkv[2].transpose(1, 2).reshape({1, B * C, rows, columns});
  const std::vector<std::int64_t> once{1, 1};
  const torch::Tensor local = torch::conv2d(image, kernels, {}, once, once, once, B * C);
  return apply_linear(proj_, out.flatten(-2) + local.reshape({B, C, rows * columns}).transpose(1, 2));
}

GatedImageAttentionImpl::GatedImageAttentionImpl(const AttentionConfig& c, Core core) : config_(c), core_(core) {
  expect_grid(name_of(core), c);
  qkvo_ = register_module("qkvo", plain_linear(c.dim, 4 * c.dim, true));
  lepe_ = register_module("lepe", GridConv(c.layout, c.dim, 5));
  proj_ = register_module("proj", plain_linear(c.dim, c.dim, true));
  rope_ = GridRope(c.layout, c.dim / c.heads, 10000.0);
}

torch::Tensor GatedImageAttentionImpl::mala(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                                            const RopeTable& table) {
  const double scale = scale_of(q);
  const torch::Tensor z = scale * (q * k.mean(1, true)).sum(-1, true);
  const auto [turned_q, turned_k] = turned(q, k, table);
  return (1 + 1 / (z + kEps)) * scale * mean_product(turned_q, turned_k, v) - z * v.mean(1, true);
}

torch::Tensor GatedImageAttentionImpl::rala(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                                            const RopeTable& table) {
  const torch::Tensor scores = scale_of(q) * (q.mean(1, true) * k).sum(-1, true);
  const torch::Tensor weighted = static_cast<double>(k.size(1)) * scores.softmax(1) * k;
  const torch::Tensor den = (q * weighted.mean(1, true)).sum(-1, true) + kEps;
  const auto [turned_q, turned_k] = turned(q, weighted, table);
  return mean_product(turned_q, turned_k, v) / den;
}

AttentionScores GatedImageAttentionImpl::scores(const torch::Tensor& x) {
  const std::vector<torch::Tensor> parts = apply_linear(qkvo_, x).chunk(4, -1);
  torch::Tensor q = by_heads(parts[0], config_.heads), k = by_heads(parts[1], config_.heads);
  AttentionScores scores;
  scores.v = by_heads(parts[2], config_.heads);
  const double scale = scale_of(q), N = static_cast<double>(x.size(1));
  const RopeTable& table = rope_.at(q);
  if (core_ == Core::kSoftmax) {
    scores.softmax = true, scores.scale = scale;
    std::tie(scores.q, scores.k) = ops::rope(q, k, table);
    return scores;
  }
  q = torch::elu(q) + 1, k = torch::elu(k) + 1;
  const auto wide = [](const torch::Tensor& y) { return y.to(torch::kDouble); };
  if (core_ == Core::kRala) {
    k = N * (scale * (q.mean(1, true) * k).sum(-1, true)).softmax(1) * k;
    const auto [turned_q, turned_k] = ops::rope(q, k, table);
    scores.q = wide(turned_q), scores.k = wide(turned_k);
    scores.den = N * ((wide(q) * wide(k).mean(1, true)).sum(-1) + kEps);
  } else {  // (1 + 1 / z_t) c q_t . k_s - z_t: one feature more
    const torch::Tensor z = scale * (wide(q) * wide(k).mean(1, true)).sum(-1, true);
    const auto [turned_q, turned_k] = ops::rope(q, k, table);
    scores.q = torch::cat({(1 + 1 / (z + kEps)) * scale * wide(turned_q), -z}, -1);
    scores.k = torch::cat({wide(turned_k), torch::ones_like(z)}, -1);
    scores.den = torch::full({x.size(0), x.size(1), 1}, N, z.options());
  }
  return scores;
}

torch::Tensor GatedImageAttentionImpl::forward(const torch::Tensor& x, const torch::Tensor& cu_seqlens) {
  refuse_packed(name_of(core_), cu_seqlens);
  const std::vector<torch::Tensor> parts = apply_linear(qkvo_, x).chunk(4, -1);
  const torch::Tensor v = by_heads(parts[2], config_.heads);
  torch::Tensor q = by_heads(parts[0], config_.heads), k = by_heads(parts[1], config_.heads), out;
  if (core_ == Core::kSoftmax) {
    std::tie(q, k) = ops::rope(q, k, rope_.at(q));
    out = ops::softmax_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), false).transpose(1, 2);
  } else {
    q = torch::elu(q) + 1, k = torch::elu(k) + 1;
    out = (core_ == Core::kMala ? mala : rala)(q, k, v, rope_.at(q));
  }
  return apply_linear(proj_, (out.flatten(-2) + lepe_(parts[2])) * parts[3]);
}

}  // namespace mhla
