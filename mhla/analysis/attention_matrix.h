// Attention matrices written out, [N, N]: row t holds the weights that token t gives to every token s.
//   softmax   A[t,s] = softmax_s(scale q_t . k_s)
//   linear    A[t,s] = phi(q_t) . phi(k_s) / (eps + its row sum)
//   mhla      A[t,s] = mix[b(t), b(s)] phi(q_t) . phi(k_s) / (eps + its row sum)
// This is the O(N^2) view of one head, for looking at; A times v is what the operators compute.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "mhla/analysis/matrix.h"

namespace mhla {

using FeatureFunction = double (*)(double);

namespace feature {
double relu_eps(double x);  // relu(x) + 1e-6
double relu(double x);      // relu(NaN) is NaN
double elu1(double x);      // x + 1 above 0, exp(x) below
double identity(double x);
}  // namespace feature

struct AttentionOptions {
  FeatureFunction feature = feature::relu_eps;  // of linear and mhla
  bool causal = false;                          // A[t,s] = 0 for s > t
  bool normalize = true;                        // linear and mhla: divide by eps + the row sum
  double eps = 1e-6;
  std::optional<double> scale = {};  // of softmax: default D^-1/2
};

Matrix softmax_attention(const Matrix& q, const Matrix& k, const AttentionOptions& options = {});  // q, k: [N, D]
Matrix linear_attention(const Matrix& q, const Matrix& k, const AttentionOptions& options = {});
// block_of[t] is the block of token t, in [0, M); mix is [M, M], row: query block.
Matrix mhla_attention(const Matrix& q, const Matrix& k, std::span<const std::int64_t> block_of, const Matrix& mix,
                      const AttentionOptions& options = {});

}  // namespace mhla
