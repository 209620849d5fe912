// Cross entropy behind the head of a language model, some tokens at a time: the logits of all tokens never exist at
// once. For tokens n with hidden h_n, table W and target t_n
//   loss = sum_n logsumexp(W h_n) - (W h_n)[t_n],   dlogits_n = softmax(W h_n) - onehot(t_n)
// and dh = dlogits W, dW = dlogits^T h are made while the logits of a piece are there, so that backward only scales
// them. Products are in the dtype of hidden, or bf16 under autocast; everything between them and all sums in f32.
#pragma once

#include "mhla/modules/torch.h"

namespace mhla {

inline constexpr std::int64_t kIgnoredTarget = -100;  // a token without a target: no loss, no gradient

// [] f32: the sum over tokens. hidden [..., dim], targets [...] i64, weight [vocab, dim]. `at_once`: tokens of a piece;
// 0: by the size of the vocabulary.
torch::Tensor head_loss(const torch::Tensor& hidden, const torch::Tensor& weight, const torch::Tensor& targets,
                        std::int64_t at_once = 0);

// The loss of every token, shaped like targets, f32, 0 where there is none; without gradients.
torch::Tensor token_losses(const torch::Tensor& hidden, const torch::Tensor& weight, const torch::Tensor& targets,
                           std::int64_t at_once = 0);

}  // namespace mhla
