// Linear layers and SiLU whose result for a token does not depend on how many others come with it. Off, they are
// LibTorch's, whose BLAS chooses its sums by the number of rows; but a few rows without gradients, a decode step, go
// through linear_forward, too. On (f32 on the CPU, no gradients): linear_forward of
// mhla/kernels, and exp through the one vector path that LibTorch has for every place of a tensor.
//
// Models call apply_linear, not a torch::nn::Linear: the C++ one adds its bias in a pass of its own.
#pragma once

#include "mhla/modules/torch.h"

namespace mhla {

// On while it lives, on the thread that made it.
class ExactLayers {
 public:
  explicit ExactLayers(bool on = true);
  ~ExactLayers();
  ExactLayers(const ExactLayers&) = delete;
  ExactLayers& operator=(const ExactLayers&) = delete;

 private:
  bool before_;
};

torch::Tensor apply_linear(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias = {});
torch::Tensor apply_linear(const torch::nn::Linear& layer, const torch::Tensor& x);
// GELU after a linear layer, and tanh-GELU: without gradients on a GPU in 16 bits that is the product's last step.
torch::Tensor apply_linear_erf_gelu(const torch::nn::Linear& layer, const torch::Tensor& x);
torch::Tensor apply_linear_gelu(const torch::nn::Linear& layer, const torch::Tensor& x);
torch::Tensor apply_silu(const torch::Tensor& x);

}  // namespace mhla
