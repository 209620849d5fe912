#include "mhla/modules/zoo/gated_image.h"

#include "mhla/modules/exact.h"
#include "mhla/modules/zoo/image_parts.h"
#include "mhla/ops/torch.h"

namespace mhla {
namespace {

const char* name_of(GatedImageAttentionImpl::Core core) {
  constexpr const char* kNames[] = {"mala", "rala", "softmax"};
  return kNames[static_cast<int>(core)];
}

std::pair<torch::Tensor, torch::Tensor> turned(const torch::Tensor& q, const torch::Tensor& k, const RopeTable& table) {
  return table.cos.defined() ? ops::rope(q, k, table) : std::pair(q, k);
}

}  // namespace

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
