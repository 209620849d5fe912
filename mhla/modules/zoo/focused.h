// Focused linear attention over a 2D grid; it has no causal form.
#pragma once

#include "mhla/modules/attention.h"
#include "mhla/modules/convolutions.h"
#include "mhla/modules/param_roles.h"
#include "mhla/modules/scores.h"
#include "mhla/modules/zoo/attention_config.h"

namespace mhla {

// Focused linear attention: features x^3 with the norm of x, a position table on k, a 5x5 convolution on v shared by
// heads.
class FocusedAttentionImpl : public Attention, public ScoredAttention, public HasParamRoles {
 public:
  explicit FocusedAttentionImpl(const AttentionConfig& config);
  using Attention::forward;
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& cu_seqlens) override;
  AttentionScores scores(const torch::Tensor& x) override;

  [[nodiscard]] std::map<std::string, ParamRole> param_roles() const override {
    return {{"positional_encoding", ParamRole::kTable}};
  }

 private:
  AttentionConfig config_;
  torch::nn::Linear qkv_{nullptr}, proj_{nullptr};
  torch::Tensor scale_, positional_encoding_;  // [1, 1, C], [1, N, C]
  GridConv dwc_{nullptr};
};
TORCH_MODULE(FocusedAttention);

}  // namespace mhla
