// What the attentions over a grid share that are linear in the tokens: Focused, InLine, MALA, RALA.
#pragma once

#include <cmath>

#include "mhla/modules/zoo/attention_config.h"
#include "mhla/modules/zoo/zoo_parts.h"

namespace mhla {

inline constexpr double kEps = 1e-6;

inline void expect_grid(const char* name, const AttentionConfig& c) {
  if (c.layout.rank != 2) fail(name, ": the layout is not a 2D grid, which its convolution needs");
  expect_divisible(name, c.dim, c.heads);
}

inline double scale_of(const torch::Tensor& q) { return 1.0 / std::sqrt(static_cast<double>(q.size(-1))); }

// q_i^T (1/N) sum_j k_j v_j^T.
inline torch::Tensor mean_product(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v) {
  const torch::Tensor S = torch::einsum("bnhd,bnhe->bhde", {k, v}) / static_cast<double>(k.size(1));
  return torch::einsum("bnhd,bhde->bnhe", {q, S});
}

}  // namespace mhla
