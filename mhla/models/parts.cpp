#include "mhla/models/parts.h"

#include <cmath>

#include "mhla/core/error.h"
#include "mhla/modules/exact.h"
#include "mhla/ops/rows_step.h"

namespace mhla {

TokenNormImpl::TokenNormImpl(std::int64_t size, bool rms, double eps) : eps_(eps) {
  weight = register_parameter("weight", torch::ones({size}));
  if (!rms) bias = register_parameter("bias", torch::zeros({size}));
}

torch::Tensor TokenNormImpl::forward(const torch::Tensor& x) {
  ops::NormOptions options;
  options.bias = bias, options.centered = bias.defined(), options.eps = eps_;
  return ops::norm(x, weight, options);
}

BatchNormImpl::BatchNormImpl(std::int64_t size) {
  weight = register_parameter("weight", torch::ones({size}));
  bias = register_parameter("bias", torch::zeros({size}));
  running_mean = register_buffer("running_mean", torch::zeros({size}));
  running_var = register_buffer("running_var", torch::ones({size}));
}

torch::Tensor BatchNormImpl::forward(const torch::Tensor& x) {
  return torch::batch_norm(x, weight, bias, running_mean, running_var, is_training(), /*momentum=*/0.1, /*eps=*/1e-5,
                           /*cudnn_enabled=*/true);
}

MlpImpl::MlpImpl(std::int64_t dim, std::int64_t width, double dropout)
    : fc1_(register_module("fc1", torch::nn::Linear(dim, width))),
      fc2_(register_module("fc2", torch::nn::Linear(width, dim))),
      dropout_(dropout) {}

torch::Tensor MlpImpl::forward(const torch::Tensor& x) {
  return torch::dropout(apply_linear(fc2_, apply_linear_erf_gelu(fc1_, x)), dropout_, is_training());
}

torch::Tensor drop_path(const torch::Tensor& x, double rate, bool training) {
  if (rate == 0.0 || !training) return x;
  std::vector<std::int64_t> shape(static_cast<std::size_t>(x.dim()), 1);
  shape[0] = x.size(0);
  const torch::Tensor kept = torch::rand(shape, x.options().dtype(torch::kFloat)) >= rate;
  return x * kept.to(x.scalar_type()) / (1.0 - rate);
}

double drop_path_rate(double last, std::int64_t index, std::int64_t count) {
  return count < 2 ? 0.0 : last * static_cast<double>(index) / static_cast<double>(count - 1);
}

void init_linears(torch::nn::Module& module, double deviation) {
  const torch::NoGradGuard no_gradient;
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    auto* linear = item.value()->as<torch::nn::LinearImpl>();
    if (linear == nullptr) continue;
    const std::string& name = item.key();
    if (name.find("feature_map") != std::string::npos || name.find("dt_proj") != std::string::npos) continue;
    linear->weight.normal_(0.0, deviation);
    if (linear->bias.defined()) linear->bias.zero_();
  }
}

torch::Tensor sincos_positions(std::int64_t rows, std::int64_t columns, std::int64_t dim) {
  const std::int64_t count = dim / 4;
  const torch::Tensor frequencies = torch::pow(1e-4, torch::arange(count, torch::kDouble) / static_cast<double>(count));
  const auto table = [&](std::int64_t places) {  // [places, dim / 2]
    const torch::Tensor angles = torch::arange(places, torch::kDouble).unsqueeze(-1) * frequencies;
    return torch::cat({angles.sin(), angles.cos()}, -1);
  };
  const std::vector<std::int64_t> shape{rows, columns, dim / 2};
  return torch::cat({table(rows).unsqueeze(1).expand(shape), table(columns).unsqueeze(0).expand(shape)}, -1)
      .flatten(0, 1)
      .to(torch::kFloat);
}

SwigluImpl::SwigluImpl(std::int64_t dim, std::int64_t width) {
  const auto linear = [](std::int64_t in, std::int64_t out) {
    return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false));
  };
  gate_ = register_module("gate_proj", linear(dim, width));
  up_ = register_module("up_proj", linear(dim, width));
  down_ = register_module("down_proj", linear(width, dim));
}

torch::Tensor SwigluImpl::forward(const torch::Tensor& x) {
  const torch::Tensor gate = apply_linear(gate_, x), up = apply_linear(up_, x);
  return apply_linear(down_, gate.scalar_type() == torch::kDouble ? apply_silu(gate) * up : ops::swiglu(gate, up));
}

torch::Tensor SwigluImpl::few_rows(const torch::Tensor& x, const RmsNorm& norm) {
  ops::RowsInputs in;
  in.before = RowsBefore::kNorm, in.after = RowsAfter::kSwiglu;
  in.x = x, in.scale = norm->weight, in.eps = norm->eps_for(x);
  in.weight = gate_->weight, in.second = up_->weight;
  if (!ops::rows_fit(in)) return {};
  ops::RowsInputs out;
  out.after = RowsAfter::kAdd, out.add = x, out.weight = down_->weight;
  out.x = ops::linear_rows_step(in, {.turn = {}, .next = down_->weight}).out;
  return ops::rows_fit(out) ? ops::linear_rows(out).out : x + apply_linear(down_, out.x);
}

std::int64_t nearest_depth(std::int64_t own, std::int64_t wanted, std::int64_t blocks) {
  return std::max<std::int64_t>(1, (2 * wanted * blocks + own) / (2 * own));
}

void expect_matched(const char* entry, std::string_view attention, std::int64_t count, std::int64_t wanted) {
  const double off = std::abs(static_cast<double>(count) / static_cast<double>(wanted) - 1.0);
  if (off > 0.03) {
    fail(entry, ": ", attention, " has no MLP, and the nearest depth gives ", count, " parameters, ", 100.0 * off,
         " % off the ", wanted, " of softmax attention, expected at most 3 %: take a deeper model");
  }
}

}  // namespace mhla
