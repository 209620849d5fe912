// InLine attention over a 2D grid; it has no causal form.
#pragma once

#include "mhla/modules/attention.h"
#include "mhla/modules/scores.h"
#include "mhla/modules/zoo/attention_config.h"

namespace mhla {

// InLine: weights that sum to 1 by subtraction, and a 3x3 convolution on v with weights made from the mean token.
class InlineAttentionImpl : public Attention, public ScoredAttention {
 public:
  explicit InlineAttentionImpl(const AttentionConfig& config);
  using Attention::forward;
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& cu_seqlens) override;
  AttentionScores scores(const torch::Tensor& x) override;
  // The attention alone: q, k, v [B, N, H, D].
  static torch::Tensor core(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v);

 private:
  AttentionConfig config_;
  torch::nn::Linear qkv_{nullptr}, proj_{nullptr};
  torch::nn::Sequential residual_{nullptr};
};
TORCH_MODULE(InlineAttention);

}  // namespace mhla
