// Mamba, as a block of its own without an MLP.
#pragma once

#include "mhla/modules/attention.h"
#include "mhla/modules/convolutions.h"
#include "mhla/modules/param_roles.h"
#include "mhla/modules/zoo/attention_config.h"
#include "mhla/modules/zoo/zoo_parts.h"

namespace mhla {

// Mamba: a selective scan over 16 states per channel, between a convolution and a gate. Expand 2.
class MambaAttentionImpl : public Attention, public HasParamRoles {
 public:
  explicit MambaAttentionImpl(const AttentionConfig& config);
  using Attention::forward;
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& cu_seqlens) override;
  [[nodiscard]] AttentionState begin(std::int64_t batch) const override;
  using Attention::stream;
  torch::Tensor stream(const torch::Tensor& x, AttentionState& state, const torch::Tensor& positions) override;

  [[nodiscard]] std::map<std::string, ParamRole> param_roles() const override { return {{"A_log", ParamRole::kTable}}; }

 private:
  torch::Tensor run(const torch::Tensor& x, const Packed& packed, AttentionState* state);
  std::int64_t inner_, rank_;
  torch::nn::Linear in_{nullptr}, x_{nullptr}, dt_{nullptr}, out_{nullptr};
  ShortConv conv_{nullptr};
  torch::Tensor A_log_, D_;  // [inner, 16], [inner]
};
TORCH_MODULE(MambaAttention);

}  // namespace mhla
