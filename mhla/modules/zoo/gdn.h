// Gated DeltaNet.
#pragma once

#include "mhla/modules/attention.h"
#include "mhla/modules/convolutions.h"
#include "mhla/modules/norms.h"
#include "mhla/modules/param_roles.h"
#include "mhla/modules/zoo/attention_config.h"
#include "mhla/modules/zoo/zoo_parts.h"

namespace mhla {

// Gated DeltaNet: short convolutions, normalised q and k, the delta rule with one decay per head.
class GdnAttentionImpl : public Attention, public HasParamRoles {
 public:
  explicit GdnAttentionImpl(const AttentionConfig& config);
  using Attention::forward;
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& cu_seqlens) override;
  [[nodiscard]] AttentionState begin(std::int64_t batch) const override;
  using Attention::stream;
  torch::Tensor stream(const torch::Tensor& x, AttentionState& state, const torch::Tensor& positions) override;

  [[nodiscard]] std::map<std::string, ParamRole> param_roles() const override { return {{"A_log", ParamRole::kTable}}; }

 private:
  torch::Tensor run(const torch::Tensor& x, const Packed& packed, AttentionState* state);
  std::int64_t heads_, key_, value_;
  torch::nn::Linear q_{nullptr}, k_{nullptr}, v_{nullptr}, a_{nullptr}, b_{nullptr}, g_{nullptr}, o_{nullptr};
  ShortConv q_conv_{nullptr}, k_conv_{nullptr}, v_conv_{nullptr};
  torch::Tensor A_log_, dt_bias_;  // [H]
  RmsNorm norm_{nullptr};
};
TORCH_MODULE(GdnAttention);

}  // namespace mhla
