// Mamba-2, as a block of its own without an MLP.
#pragma once

#include "mhla/modules/attention.h"
#include "mhla/modules/convolutions.h"
#include "mhla/modules/norms.h"
#include "mhla/modules/param_roles.h"
#include "mhla/modules/zoo/attention_config.h"
#include "mhla/modules/zoo/zoo_parts.h"

namespace mhla {

// Mamba-2: one decay per head of 64 channels, 128 states, one group. Expand 2.
class Mamba2AttentionImpl : public Attention, public HasParamRoles {
 public:
  explicit Mamba2AttentionImpl(const AttentionConfig& config);
  using Attention::forward;
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& cu_seqlens) override;
  [[nodiscard]] AttentionState begin(std::int64_t batch) const override;
  using Attention::stream;
  torch::Tensor stream(const torch::Tensor& x, AttentionState& state, const torch::Tensor& positions) override;

  [[nodiscard]] std::map<std::string, ParamRole> param_roles() const override { return {{"A_log", ParamRole::kTable}}; }

 private:
  torch::Tensor run(const torch::Tensor& x, const Packed& packed, AttentionState* state);
  std::int64_t inner_, head_, heads_;
  torch::nn::Linear in_{nullptr}, out_{nullptr};
  ShortConv conv_{nullptr};
  torch::Tensor dt_bias_, A_log_, D_;  // [heads]
  RmsNorm norm_{nullptr};
};
TORCH_MODULE(Mamba2Attention);

}  // namespace mhla
