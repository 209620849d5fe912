// What networks over images [B, C, rows, columns] share.
#pragma once

#include <optional>

#include "mhla/modules/torch.h"

namespace mhla {

// RMSNorm over the channels with gain and bias, in f32 (f64 for f64).
class ChannelNormImpl : public torch::nn::Module {
 public:
  explicit ChannelNormImpl(std::int64_t channels, double eps = 1e-5);
  torch::Tensor forward(const torch::Tensor& x);

  torch::Tensor weight, bias;  // [C]

 private:
  double eps_;
};
TORCH_MODULE(ChannelNorm);

// GLUMBConv, the feed-forward of SANA and DC-AE: 1x1 to twice the width, SiLU, depth-wise 3x3, value * SiLU(gate), 1x1
// back. The first half of the channels is the value. With `norm_eps` a ChannelNorm at the end.
class GluConvImpl : public torch::nn::Module {
 public:
  GluConvImpl(std::int64_t channels, std::int64_t width, std::optional<double> norm_eps = {});
  torch::Tensor forward(const torch::Tensor& x);

 private:
  torch::nn::Conv2d inverted_{nullptr}, depth_{nullptr}, point_{nullptr};
  ChannelNorm norm_{nullptr};
};
TORCH_MODULE(GluConv);

// Numbers of a convolution with a kernel of `taps` numbers a channel pair, and of a GluConv.
double conv_size(std::int64_t in, std::int64_t out, std::int64_t side, bool bias = true);
double glu_conv_size(std::int64_t channels, std::int64_t width, bool norm);

torch::nn::Conv2d conv(std::int64_t in, std::int64_t out, std::int64_t side, std::int64_t stride = 1, bool bias = true,
                       std::int64_t groups = 1);  // zero padding of side / 2

}  // namespace mhla
