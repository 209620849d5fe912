// Recurrences of the linear attentions that forget, computed chunk by chunk: products inside a chunk, a state of D x E
// from chunk to chunk. In f32 at least. Token by token they are (README.md):
//   gated      S_t = diag(a_t) S_{t-1} + k_t v_t^T,                              o_t = scale q_t^T S_t     (GLA)
//   decayed    S_t = a_t S_{t-1} + k_t v_t^T, a_t one number per head            o_t = scale q_t^T S_t     (Mamba-2)
//   delta      S_t = a_t S_{t-1} + b_t k_t (v_t - a_t S_{t-1}^T k_t)^T           o_t = scale S_t^T q_t     (Gated
//   DeltaNet) selective  h_t = exp(dt_t A) h_{t-1} + dt_t B_t x_t, per channel             y_t = C_t . h_t (Mamba)
// Decays come as logarithms, at most 0. Any number of tokens.
#pragma once

#include "mhla/modules/torch.h"

namespace mhla {

// The gated form divides by decays inside a chunk, counted from its middle: exact while the logarithm of one step stays
// above -10 (16 tokens: exp(80) is the largest factor); GLA's gate would have to be below -160 for less.
inline constexpr std::int64_t kGatedChunk = 16, kDecayedChunk = 64, kSelectiveChunk = 16;

torch::Tensor gated_scan(const torch::Tensor& q /* [B, N, H, D] */, const torch::Tensor& k,
                         const torch::Tensor& v /* E */, const torch::Tensor& log_decay /* [B, N, H, D] */,
                         double scale);
torch::Tensor decayed_scan(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                           const torch::Tensor& log_decay /* [B, N, H] */, double scale);
torch::Tensor delta_scan(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                         const torch::Tensor& beta /* [B, N, H] */, const torch::Tensor& log_decay /* [B, N, H] */,
                         double scale);
torch::Tensor selective_scan(const torch::Tensor& x /* [B, N, channels] */, const torch::Tensor& dt /* like x */,
                             const torch::Tensor& A /* [channels, states] */,
                             const torch::Tensor& B /* [B, N, states] */, const torch::Tensor& C /* like B */);

}  // namespace mhla
