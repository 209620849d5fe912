#include "mhla/modules/zoo/focused.h"

#include "mhla/modules/exact.h"
#include "mhla/modules/zoo/image_parts.h"

namespace mhla {
namespace {

constexpr double kFocusing = 3.0;

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

}  // namespace mhla
