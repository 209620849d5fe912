#include "mhla/modules/convolutions.h"

#include <cmath>

#include "mhla/core/error.h"
#include "mhla/ops/ops.h"

namespace mhla {
namespace {

// The framework's default: uniform in +-1/sqrt(fan in), fan in being the taps of one channel.
torch::Tensor uniform(const std::vector<std::int64_t>& shape, std::int64_t taps) {
  const double bound = 1.0 / std::sqrt(static_cast<double>(taps));
  return torch::empty(shape).uniform_(-bound, bound);
}

}  // namespace

GridConvImpl::GridConvImpl(const Layout& layout, std::int64_t channels, std::int64_t kernel)
    : grid_(layout.grid.end() - layout.rank, layout.grid.end()) {
  if (layout.rank < 2) fail("GridConv: the layout is ", describe(layout), ", expected a 2D or 3D grid");
  if (kernel < 1 || kernel % 2 == 0) fail("GridConv: kernel is ", kernel, ", expected an odd number");
  std::vector<std::int64_t> shape{channels, 1};
  std::int64_t taps = 1;
  for (int axis = 0; axis < layout.rank; ++axis) shape.push_back(kernel), taps *= kernel;
  weight = register_parameter("weight", uniform(shape, taps));
  bias = register_parameter("bias", uniform({channels}, taps));
}

torch::Tensor GridConvImpl::forward(const torch::Tensor& x, const torch::Tensor& base, const torch::Tensor& gate) {
  const ops::GridConvInputs inputs{x, weight, bias, base, gate};
  if (share_ != nullptr && share_->active()) return ops::shared_grid_conv(inputs, grid_, *share_->group);
  return ops::grid_conv(inputs, grid_);
}

void GridConvImpl::set_identity() {
  const torch::NoGradGuard no_gradient;
  weight.zero_();
  weight.flatten(1).select(1, weight[0].numel() / 2).fill_(1);
  bias.zero_();
}

ShortConvImpl::ShortConvImpl(std::int64_t channels, std::int64_t kernel, bool with_bias) {
  if (kernel < 1) fail("ShortConv: kernel is ", kernel, ", expected at least 1");
  weight = register_parameter("weight", uniform({channels, 1, kernel}, kernel));
  if (with_bias) bias = register_parameter("bias", uniform({channels}, kernel));
}

torch::Tensor ShortConvImpl::forward(const torch::Tensor& x, const torch::Tensor& positions) {
  const std::int64_t tokens = x.size(1), kernel = weight.size(2);
  if (positions.defined()) {  // tap by tap, leaving out what lies before a sequence's start
    const torch::Tensor padded = torch::constant_pad_nd(x, {0, 0, kernel - 1, 0});
    torch::Tensor sum = torch::zeros_like(x);
    for (std::int64_t j = 0; j < kernel; ++j) {
      const torch::Tensor inside = (positions >= kernel - 1 - j).unsqueeze(-1);
      sum = sum + padded.narrow(1, j, tokens).masked_fill(inside.logical_not(), 0.0) * weight.select(2, j).squeeze(1);
    }
    return torch::silu(bias.defined() ? sum + bias : sum);
  }
  return inside(torch::constant_pad_nd(x, {0, 0, kernel - 1, 0}));
}

torch::Tensor ShortConvImpl::inside(const torch::Tensor& padded) const {
  const std::vector<std::int64_t> once{1}, none{0};
  const torch::Tensor out = torch::conv1d(padded.transpose(1, 2), weight, bias, once, none, once, weight.size(0));
  return torch::silu(out).transpose(1, 2);
}

torch::Tensor ShortConvImpl::stream(const torch::Tensor& x, torch::Tensor& tail) {
  if (x.size(1) == 0) return x;
  const torch::Tensor padded = torch::cat({tail, x}, 1);
  tail = padded.narrow(1, x.size(1), tail.size(1)).clone();
  return inside(padded);
}

torch::Tensor ShortConvImpl::empty_tail(std::int64_t batch) const {
  return torch::zeros({batch, weight.size(2) - 1, weight.size(0)}, weight.options().requires_grad(false));
}

}  // namespace mhla
