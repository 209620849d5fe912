#include "mhla/modules/zoo/softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "mhla/modules/exact.h"
#include "mhla/modules/zoo/zoo_parts.h"
#include "mhla/ops/cudnn_attention.h"
#include "mhla/ops/torch.h"

namespace mhla {
namespace {

constexpr double kRopeBase = 10000.0;
constexpr std::int64_t kScores = std::int64_t{1} << 24;  // query-key pairs of a head at a time in streaming

}  // namespace

SoftmaxAttentionImpl::SoftmaxAttentionImpl(const AttentionConfig& c) : config_(c) {
  expect_divisible("softmax", c.dim, c.heads);
  const bool bias = !c.causal;  // language models have none
  qkv_ = register_module("qkv", plain_linear(c.dim, 3 * c.dim, bias));
  proj_ = register_module("proj", plain_linear(c.dim, c.dim, bias));
  if (c.lepe != 0) lepe_ = register_module("lepe", GridConv(c.layout, c.dim, c.lepe));
  rope_ = c.maybe_rope_cache ? c.maybe_rope_cache : std::make_shared<RopeCache>(c.dim / c.heads, kRopeBase);
  if (c.rope && c.layout.rank > 1) grid_rope_ = GridRope(c.layout, c.dim / c.heads, kRopeBase);
}

std::vector<torch::Tensor> SoftmaxAttentionImpl::project(const torch::Tensor& x, const torch::Tensor& positions,
                                                         std::int64_t count) {
  std::vector<torch::Tensor> qkv = apply_linear(qkv_, x).unflatten(-1, {3, config_.heads, -1}).unbind(2);
  if (config_.rope) {
    const RopeTable table = config_.layout.rank > 1 ? grid_rope_.at(qkv[0]) : rope_->at(positions, count, qkv[0]);
    std::tie(qkv[0], qkv[1]) = ops::rope(qkv[0], qkv[1], table);
  }
  return qkv;
}

AttentionState SoftmaxAttentionImpl::begin(std::int64_t batch) const {
  if (!config_.causal) return Attention::begin(batch);
  AttentionState state;
  state.positions.assign(static_cast<std::size_t>(batch), 0);
  const torch::Tensor none =
      torch::empty({batch, 0, config_.heads, config_.dim / config_.heads}, qkv_->weight.options().requires_grad(false));
  state.tensors = {{"keys", none}, {"values", none}};
  return state;
}

torch::Tensor SoftmaxAttentionImpl::stream(const torch::Tensor& x, AttentionState& state,
                                           const torch::Tensor& positions) {
  const torch::NoGradGuard no_gradient;
  const ops::WithoutCudnnAttention without_plans;
  const std::int64_t B = x.size(0), T = x.size(1);
  if (T == 0) return x;
  const auto [least, most] = std::minmax_element(state.positions.begin(), state.positions.end());
  const std::int64_t first = *least, last = *most + T;
  const std::vector<torch::Tensor> qkv = project(x, positions, last);
  const bool together = first + T == last;
  torch::Tensor &keys = state.tensors.at("keys"), &values = state.tensors.at("values");
  const auto keep = [&](torch::Tensor& all, const torch::Tensor& these) {
    if (all.size(1) < last) {  // twice the room each time: tokens are moved twice at most on average
      std::int64_t room = 64;
      while (room < last) room *= 2;
      all = torch::constant_pad_nd(all, {0, 0, 0, 0, 0, room - all.size(1)});
    }
    if (together) {
      all.narrow(1, first, T).copy_(these);
    } else {
      const torch::Tensor rows = torch::arange(B, positions.options()).unsqueeze(1);
      all.index_put_({rows, positions}, these.to(all.scalar_type()));
    }
    return all.narrow(1, 0, last).transpose(1, 2);  // [B, H, last, D]
  };
  const torch::Tensor k = keep(keys, qkv[1]), v = keep(values, qkv[2]), q = qkv[0].transpose(1, 2);
  for (std::int64_t& position : state.positions) position += T;
  if (together && (T == 1 || first == 0))
    return apply_linear(proj_, ops::softmax_attention(q, k, v, /*causal=*/T > 1).transpose(1, 2).flatten(-2));
  // Some queries at a time, so that a long past does not need queries x keys numbers at once.
  const std::int64_t piece = std::max<std::int64_t>(1, kScores / last);
  const torch::Tensor places = torch::arange(last, positions.options());
  std::vector<torch::Tensor> parts;
  for (std::int64_t t = 0; t < T; t += piece) {
    const std::int64_t count = std::min(piece, T - t);
    const torch::Tensor seen = places <= positions.narrow(1, t, count).unsqueeze(-1);  // [B, count, last]
    parts.push_back(ops::softmax_attention(q.narrow(2, t, count), k, v, false, seen.unsqueeze(1)));
  }
  return apply_linear(proj_, torch::cat(parts, 2).transpose(1, 2).flatten(-2));
}

torch::Tensor SoftmaxAttentionImpl::matrix(const torch::Tensor& x) {
  const torch::NoGradGuard no_gradient;
  const std::vector<torch::Tensor> qkv = project(x, {}, x.size(1));
  torch::Tensor scores =
      torch::einsum("bthd,bshd->bhts", {qkv[0], qkv[1]}) / std::sqrt(static_cast<double>(qkv[0].size(-1)));
  if (config_.causal) {
    const torch::Tensor future = torch::ones_like(scores[0][0], torch::kBool).triu(1);
    scores = scores.masked_fill(future, -std::numeric_limits<double>::infinity());
  }
  return scores.softmax(-1);
}

AttentionScores SoftmaxAttentionImpl::scores(const torch::Tensor& x) {
  if (config_.causal || config_.layout.rank < 2)
    fail("softmax: scores are those of a grid, expected a 2D or 3D layout");
  const std::vector<torch::Tensor> qkv = project(x, {}, x.size(1));
  AttentionScores scores;
  scores.softmax = true, scores.scale = 1.0 / std::sqrt(static_cast<double>(qkv[0].size(-1)));
  scores.q = qkv[0], scores.k = qkv[1], scores.v = qkv[2];
  return scores;
}

torch::Tensor SoftmaxAttentionImpl::forward(const torch::Tensor& x, const torch::Tensor& cu_seqlens) {
  if (config_.layout.rank > 1) refuse_packed("softmax", cu_seqlens);  // images have one size
  const Packed packed("softmax", x, cu_seqlens);
  const std::vector<torch::Tensor> qkv = project(x, packed.positions, x.size(1));
  const auto core = [&](std::int64_t start, std::int64_t count) {
    const auto heads_first = [&](const torch::Tensor& y) { return y.narrow(1, start, count).transpose(1, 2); };
    return ops::softmax_attention(heads_first(qkv[0]), heads_first(qkv[1]), heads_first(qkv[2]), config_.causal)
        .transpose(1, 2);
  };
  torch::Tensor out;
  if (packed.bounds.empty()) {
    out = core(0, x.size(1));
  } else {  // the cost is the sum of squared lengths: each by itself
    std::vector<torch::Tensor> alone{x.new_empty({1, 0, config_.heads, qkv[2].size(-1)})};
    for (std::size_t i = 0; i + 1 < packed.bounds.size(); ++i) {
      const std::int64_t count = packed.bounds[i + 1] - packed.bounds[i];
      if (count > 0) alone.push_back(core(packed.bounds[i], count));
    }
    out = torch::cat(alone, 1);
  }
  torch::Tensor tokens = out.flatten(-2);
  if (config_.lepe != 0) tokens = lepe_(qkv[2].flatten(-2), tokens);
  return apply_linear(proj_, tokens);
}

}  // namespace mhla
