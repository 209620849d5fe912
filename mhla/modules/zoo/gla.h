// Gated linear attention.
#pragma once

#include "mhla/modules/attention.h"
#include "mhla/modules/norms.h"
#include "mhla/modules/zoo/attention_config.h"
#include "mhla/modules/zoo/zoo_parts.h"

namespace mhla {

// Gated linear attention: decays per key channel from a projection of rank 16; o = RMSNorm_head(S^T q) * SiLU(g).
class GlaAttentionImpl : public Attention {
 public:
  explicit GlaAttentionImpl(const AttentionConfig& config);
  using Attention::forward;
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& cu_seqlens) override;
  [[nodiscard]] AttentionState begin(std::int64_t batch) const override;
  using Attention::stream;
  torch::Tensor stream(const torch::Tensor& x, AttentionState& state, const torch::Tensor& positions) override;

 private:
  torch::Tensor run(const torch::Tensor& x, const Packed& packed, AttentionState* state);
  std::int64_t heads_, key_, value_;
  torch::nn::Linear q_{nullptr}, k_{nullptr}, v_{nullptr}, g_{nullptr}, o_{nullptr};
  torch::nn::Sequential gk_{nullptr};
  RmsNorm norm_{nullptr};
};
TORCH_MODULE(GlaAttention);

}  // namespace mhla
