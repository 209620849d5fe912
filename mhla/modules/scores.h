// Attentions whose weights are a matrix, out_t = sum_s A[t,s] v_s, say what it is made of:
//   softmax   A[t,s] = exp(scale q_t . k_s) / its row sum
//   others    A[t,s] = mix[b(t), b(s)] q_t . k_s / den_t
// The matrix itself is never formed here: analysis/ works on the factors. Convolutions and gates around the attention
// are no part of it.
#pragma once

#include "mhla/kernels/common/layout.h"
#include "mhla/kernels/common/options.h"
#include "mhla/modules/torch.h"

namespace mhla {

struct AttentionScores {
  bool softmax = false;
  double scale = 1.0;     // of softmax
  torch::Tensor q, k, v;  // [B, N, H, D], [B, N, Hkv, D], [B, N, Hkv, E]; features applied, rotated
  torch::Tensor mix;      // [M, M] or [H, M, M]; undefined: one block
  Layout layout;          // of the blocks, where there is a mix
  torch::Tensor den;      // [B, N, H] or [B, N, 1]; undefined for softmax
};

class ScoredAttention {
 public:
  virtual ~ScoredAttention() = default;
  virtual AttentionScores scores(const torch::Tensor& x) = 0;  // x [B, N, C], as forward() takes it
};

// What stands below a row without eps, [B, N, H], from features q [B, N, H, D] and k [B, N, Hkv, D]:
//   paper     q_t . sum_b mix[i,b] z_b            for t in block i
//   official  sum_b mix[i,b] (q_{b,w} . z_b)      for t at place w of block i; blocks of one size
torch::Tensor denominators(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& mix,
                           const Layout& layout, Normalizer normalizer);

}  // namespace mhla
