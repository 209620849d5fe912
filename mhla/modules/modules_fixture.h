// Plain LibTorch code that tests of this room compare with: the operator over pairs of tokens,
// A[t, s] = mix[b(t), b(s)] * q~_t . k~_s, and slopes.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

#include "mhla/kernels/common/layout.h"
#include "mhla/modules/torch.h"
#include "mhla/testing/messages.h"

namespace mhla {

// The block of every token, [N].
inline torch::Tensor block_of_tokens(const Layout& layout, std::int64_t N) {
  const BlockMap map(layout, N);
  torch::Tensor block = torch::empty({N}, torch::kLong);
  for (std::int64_t b = 0; b < map.blocks(); ++b) {
    for (std::int64_t run = 0; run < map.runs(b); ++run)
      block.narrow(0, map.run_start(b, run), map.run_length(b)).fill_(b);
  }
  return block;
}

struct PlainTokens {
  torch::Tensor q, k, v;       // features [B, N, H, D], values [B, N, H, E]: as many key heads as query heads
  torch::Tensor q_den, k_den;  // undefined: q and k
  bool causal = false, normalized = true;
  double eps = 1e-6, scale = 1.0;
};
inline torch::Tensor plain_mhla(const PlainTokens& x, const torch::Tensor& mix, const torch::Tensor& block) {
  const torch::Tensor weights = mix.index_select(-2, block).index_select(-1, block);
  const auto pairs = [&](const torch::Tensor& a, const torch::Tensor& b) {
    const torch::Tensor dots = torch::einsum("bthd,bshd->bhts", {a, b}) * weights;
    return x.causal ? dots.tril() : dots;
  };
  const torch::Tensor num = x.scale * torch::einsum("bhts,bshe->bthe", {pairs(x.q, x.k), x.v});
  if (!x.normalized) return num;
  const bool own = x.q_den.defined();
  const torch::Tensor den = x.eps + pairs(own ? x.q_den : x.q, own ? x.k_den : x.k).sum(-1);
  return num / den.transpose(1, 2).unsqueeze(-1);
}

// Largest difference over largest value; NaN where either is.
inline double relative_distance(const torch::Tensor& got, const torch::Tensor& want) {
  if (got.sizes() != want.sizes()) return std::numeric_limits<double>::infinity();
  return ((got - want).abs().max() / want.abs().max()).item<double>();
}

// The same, over 1e-3 where all values are smaller.
inline double distance(const torch::Tensor& got, const torch::Tensor& want) {
  if (got.sizes() != want.sizes()) return std::numeric_limits<double>::infinity();
  return ((got - want).abs().max() / want.abs().max().clamp_min(1e-3)).item<double>();
}

// Gradients of a module of f64 against the slope of sum(w * out) along a random direction of each parameter and of x.
inline void check_slopes(torch::nn::Module& module, const torch::Tensor& input,
                         const std::function<torch::Tensor(const torch::Tensor&)>& forward, double tolerance = 1e-5) {
  torch::Tensor x = input.detach().clone().requires_grad_();
  const torch::Tensor weight = torch::randn_like(forward(x)).detach();
  const auto loss = [&] { return (forward(x) * weight).sum(); };
  loss().backward();
  std::vector<std::pair<std::string, torch::Tensor>> leaves{{"x", x}};
  for (const auto& item : module.named_parameters()) {
    if (item.value().requires_grad()) leaves.emplace_back(item.key(), item.value());
  }
  for (auto& [name, leaf] : leaves) {
    ASSERT_TRUE(leaf.grad().defined()) << name << " has no gradient";
    const torch::NoGradGuard no_gradient;
    const torch::Tensor direction = torch::randn_like(leaf), kept = leaf.clone();
    const double h = 1e-5;
    leaf.copy_(kept + h * direction);
    const double above = loss().item<double>();
    leaf.copy_(kept - h * direction);
    const double below = loss().item<double>();
    leaf.copy_(kept);
    const double slope = (above - below) / (2 * h), want = (leaf.grad() * direction).sum().item<double>();
    EXPECT_LE(std::abs(slope - want), tolerance * std::max(1.0, std::abs(want)))
        << name << ": " << slope << " " << want;
  }
}

}  // namespace mhla
