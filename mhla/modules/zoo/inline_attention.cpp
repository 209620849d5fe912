#include "mhla/modules/zoo/inline_attention.h"

#include "mhla/modules/exact.h"
#include "mhla/modules/zoo/image_parts.h"

namespace mhla {

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

}  // namespace mhla
