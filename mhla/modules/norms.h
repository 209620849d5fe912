// RMSNorm: x / sqrt(mean(x^2) + eps) * weight over the last axis, statistics in f32 (f64 for f64); times silu(gate)
// where one is given. Under autocast the result has its 16-bit dtype.
#pragma once

#include <optional>

#include "mhla/modules/torch.h"

namespace mhla {

// Without eps: the epsilon of the input's dtype, as torch.nn.RMSNorm has it (1.2e-7 in f32, 7.8e-3 in bf16).
torch::Tensor rms_norm(const torch::Tensor& x, const torch::Tensor& weight, std::optional<double> eps,
                       const torch::Tensor& gate = {});

class RmsNormImpl : public torch::nn::Module {
 public:
  explicit RmsNormImpl(std::int64_t size, std::optional<double> eps = {});
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& gate = {}) {
    return rms_norm(x, weight, eps_, gate);
  }

  // x + add and its norm, in one pass on a GPU.
  std::pair<torch::Tensor, torch::Tensor> joined(const torch::Tensor& x, const torch::Tensor& add);

  [[nodiscard]] double eps_for(const torch::Tensor& x) const;

  torch::Tensor weight;  // [size]

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(torch::Tensor())})

 private:
  std::optional<double> eps_;
};
TORCH_MODULE(RmsNorm);

}  // namespace mhla
