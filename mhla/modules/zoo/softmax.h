// Softmax attention, causal, over a grid or packed; streaming keeps the keys and values of all tokens.
#pragma once

#include "mhla/modules/attention.h"
#include "mhla/modules/convolutions.h"
#include "mhla/modules/rope.h"
#include "mhla/modules/scores.h"
#include "mhla/modules/zoo/attention_config.h"

namespace mhla {

// o_t = sum_s softmax_s(q_t . k_s / sqrt D) v_s.
class SoftmaxAttentionImpl : public Attention, public ScoredAttention {
 public:
  explicit SoftmaxAttentionImpl(const AttentionConfig& config);
  using Attention::forward;
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& cu_seqlens) override;
  torch::Tensor matrix(const torch::Tensor& x) override;
  AttentionScores scores(const torch::Tensor& x) override;
  [[nodiscard]] AttentionState begin(std::int64_t batch) const override;  // keys and values of all tokens
  using Attention::stream;
  torch::Tensor stream(const torch::Tensor& x, AttentionState& state, const torch::Tensor& positions) override;

 private:
  // q, k, v [B, N, H, D]. Positions of a sequence are below `count`; undefined: 0 to N - 1.
  std::vector<torch::Tensor> project(const torch::Tensor& x, const torch::Tensor& positions, std::int64_t count);
  AttentionConfig config_;
  std::shared_ptr<RopeCache> rope_;
  GridRope grid_rope_;
  torch::nn::Linear qkv_{nullptr}, proj_{nullptr};
  GridConv lepe_{nullptr};
};
TORCH_MODULE(SoftmaxAttention);

}  // namespace mhla
