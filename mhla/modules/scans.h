// Recurrences of the linear attentions that forget, computed chunk by chunk: products inside a chunk, a state of D x E
// from chunk to chunk. In f32 at least. Token by token they are (README.md):
//   gated      S_t = diag(a_t) S_{t-1} + k_t v_t^T,                       o_t = scale q_t^T S_t   (GLA)
//   decayed    S_t = a_t S_{t-1} + k_t v_t^T, a_t one number per head     o_t = scale q_t^T S_t   (Mamba-2)
//   delta      S_t = a_t S_{t-1} + b_t k_t (v_t - a_t S_{t-1}^T k_t)^T    o_t = scale S_t^T q_t   (Gated DeltaNet)
//   selective  h_t = exp(dt_t A) h_{t-1} + dt_t B_t x_t, per channel      y_t = C_t . h_t         (Mamba)
// Decays come as logarithms, at most 0; minus infinity forgets everything. Only logarithms between two tokens are ever
// added up for them, and only sums that are at most 0 exponentiated, so that no decay is too strong. Any number of
// tokens. `first` [N]: true where a packed sequence starts, before which nothing is remembered; undefined: one
// sequence. `state`: what the tokens before left, in f32 at least, replaced by what these leave; null: nothing came
// before.
#pragma once

#include "mhla/modules/torch.h"

namespace mhla {

inline constexpr std::int64_t kGatedChunk = 64, kDecayedChunk = 64, kSelectiveChunk = 16;

torch::Tensor gated_scan(const torch::Tensor& q /* [B, N, H, D] */, const torch::Tensor& k,
                         const torch::Tensor& v /* E */, const torch::Tensor& log_decay /* [B, N, H, D] */,
                         double scale, const torch::Tensor& first = {},
                         torch::Tensor* state = nullptr /* [B, H, D, E] */);
torch::Tensor decayed_scan(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                           const torch::Tensor& log_decay /* [B, N, H] */, double scale,
                           const torch::Tensor& first = {}, torch::Tensor* state = nullptr);
torch::Tensor delta_scan(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                         const torch::Tensor& beta /* [B, N, H] */, const torch::Tensor& log_decay /* [B, N, H] */,
                         double scale, const torch::Tensor& first = {},
                         torch::Tensor* state = nullptr /* [B, H, D, E] */);
torch::Tensor selective_scan(const torch::Tensor& x /* [B, N, channels] */, const torch::Tensor& dt /* like x */,
                             const torch::Tensor& A /* [channels, states] */,
                             const torch::Tensor& B /* [B, N, states] */, const torch::Tensor& C /* like B */,
                             const torch::Tensor& first = {},
                             torch::Tensor* state = nullptr /* [B, channels, states] */);

}  // namespace mhla
