#include "mhla/models/image_parts.h"

namespace mhla {

ChannelNormImpl::ChannelNormImpl(std::int64_t channels, double eps) : eps_(eps) {
  weight = register_parameter("weight", torch::ones({channels}));
  bias = register_parameter("bias", torch::zeros({channels}));
}

torch::Tensor ChannelNormImpl::forward(const torch::Tensor& x) {
  const bool narrow = x.scalar_type() == torch::kBFloat16 || x.scalar_type() == torch::kHalf;
  const torch::Tensor wide = narrow ? x.to(torch::kFloat) : x;
  const torch::Tensor scale = torch::rsqrt(wide.square().mean(1, /*keepdim=*/true) + eps_);
  const auto column = [&](const torch::Tensor& row) { return row.view({1, -1, 1, 1}).to(wide.scalar_type()); };
  return torch::addcmul(column(bias), wide * scale, column(weight)).to(x.scalar_type());
}

torch::nn::Conv2d conv(std::int64_t in, std::int64_t out, std::int64_t side, std::int64_t stride, bool bias,
                       std::int64_t groups) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(in, out, side).stride(stride).padding(side / 2).bias(bias).groups(groups));
}

GluConvImpl::GluConvImpl(std::int64_t channels, std::int64_t width, std::optional<double> norm_eps)
    : inverted_(register_module("conv_inverted", conv(channels, 2 * width, 1))),
      depth_(register_module("conv_depth", conv(2 * width, 2 * width, 3, 1, true, 2 * width))),
      point_(register_module("conv_point", conv(width, channels, 1, 1, false))) {
  if (norm_eps) norm_ = register_module("norm", ChannelNorm(channels, *norm_eps));
}

torch::Tensor GluConvImpl::forward(const torch::Tensor& x) {
  const std::vector<torch::Tensor> halves = depth_(torch::silu(inverted_(x))).chunk(2, 1);
  const torch::Tensor out = point_(halves[0] * torch::silu(halves[1]));
  return norm_.is_empty() ? out : norm_(out);
}

double conv_size(std::int64_t in, std::int64_t out, std::int64_t side, bool bias) {
  return static_cast<double>(out) * (static_cast<double>(in) * static_cast<double>(side * side) + (bias ? 1.0 : 0.0));
}

double glu_conv_size(std::int64_t channels, std::int64_t width, bool norm) {
  return conv_size(channels, 2 * width, 1) + conv_size(1, 2 * width, 3) + conv_size(width, channels, 1, false) +
         (norm ? 2.0 * static_cast<double>(channels) : 0.0);
}

}  // namespace mhla
