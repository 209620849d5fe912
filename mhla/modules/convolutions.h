// The convolutions around attention: depth-wise over the token grid (LePE on v, CPE on the residual stream), and short
// causal ones along a sequence. Tokens are [B, N, C] in raster order everywhere.
#pragma once

#include "mhla/kernels/common/layout.h"
#include "mhla/modules/context_share.h"
#include "mhla/modules/torch.h"

namespace mhla {

// Depth-wise over a 2D or 3D grid, odd kernel, zero padding: weight [C, 1, k, k] or [C, 1, k, k, k], bias [C].
class GridConvImpl : public torch::nn::Module, public SharesContext {
 public:
  GridConvImpl(const Layout& layout, std::int64_t channels, std::int64_t kernel);
  // [B, N, C]. `base` is added, times silu(gate) where one is given: in the same pass on a GPU.
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& base = {}, const torch::Tensor& gate = {});
  void set_identity();  // centre 1, rest 0, bias 0: the start of DiT's
  void share_context(const std::shared_ptr<ContextShare>& share) override { share_ = share; }

  torch::Tensor weight, bias;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(torch::Tensor())}, {2, torch::nn::AnyValue(torch::Tensor())})

 private:
  std::vector<std::int64_t> grid_;
  std::shared_ptr<ContextShare> share_;  // none: whole grids
};
TORCH_MODULE(GridConv);

// x + GridConv(x): the conditional position encoding at a block's start.
class CpeImpl : public torch::nn::Module {
 public:
  CpeImpl(const Layout& layout, std::int64_t channels, std::int64_t kernel = 3)
      : conv_(register_module("conv", GridConv(layout, channels, kernel))) {}
  torch::Tensor forward(const torch::Tensor& x) { return x + conv_(x); }

 private:
  GridConv conv_;
};
TORCH_MODULE(Cpe);

// SiLU of a causal depth-wise convolution along the tokens: out_t = silu(sum_j weight[c, j] x_{t - k + 1 + j, c} +
// bias).
class ShortConvImpl : public torch::nn::Module {
 public:
  explicit ShortConvImpl(std::int64_t channels, std::int64_t kernel = 4, bool bias = false);
  // x [B, N, C]; `positions` [N]: places of the tokens in their packed sequences, none of which reads another.
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& positions = {});
  // Of tokens that continue others, of which the last are `before` [B, k - 1, C].
  torch::Tensor after(const torch::Tensor& before, const torch::Tensor& x) {
    return inside(torch::cat({before, x}, 1));
  }
  // A few tokens at a time: `tail` [B, k - 1, C] has the inputs before x, zeros at first, and then those before the
  // next.
  torch::Tensor stream(const torch::Tensor& x, torch::Tensor& tail);
  [[nodiscard]] torch::Tensor empty_tail(std::int64_t batch) const;

  torch::Tensor weight;  // [C, 1, k]
  torch::Tensor bias;    // [C], or undefined

 private:
  [[nodiscard]] torch::Tensor inside(const torch::Tensor& padded) const;  // [B, N + k - 1, C] to [B, N, C]
};
TORCH_MODULE(ShortConv);

}  // namespace mhla
