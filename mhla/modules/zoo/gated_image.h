// MALA and RALA over a 2D grid, and the host they share; they have no causal form.
#pragma once

#include "mhla/modules/attention.h"
#include "mhla/modules/convolutions.h"
#include "mhla/modules/rope.h"
#include "mhla/modules/scores.h"
#include "mhla/modules/zoo/attention_config.h"

namespace mhla {

// MALA and RALA share their host: q, k, v and a gate from one projection, (core + LePE 5x5 (v)) * gate, 2D RoPE. VLT
// has softmax attention in it, too, without features.
class GatedImageAttentionImpl : public Attention, public ScoredAttention {
 public:
  enum class Core { kMala, kRala, kSoftmax };
  GatedImageAttentionImpl(const AttentionConfig& config, Core core);
  using Attention::forward;
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& cu_seqlens) override;
  AttentionScores scores(const torch::Tensor& x) override;
  // The attentions alone: features q, k [B, N, H, D] and values; an empty table rotates nothing.
  static torch::Tensor mala(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                            const RopeTable& table = {});
  static torch::Tensor rala(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                            const RopeTable& table = {});

 private:
  AttentionConfig config_;
  Core core_;
  torch::nn::Linear qkvo_{nullptr}, proj_{nullptr};
  GridConv lepe_{nullptr};
  GridRope rope_;
};
TORCH_MODULE(GatedImageAttention);

}  // namespace mhla
