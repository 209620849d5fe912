#include "mhla/modules/norms.h"

#include "mhla/ops/ops.h"

namespace mhla {
namespace {

double epsilon_of(torch::ScalarType dtype) {
  switch (dtype) {
    case torch::kDouble: return 0x1p-52;
    case torch::kBFloat16: return 0x1p-7;
    case torch::kHalf: return 0x1p-10;
    default: return 0x1p-23;
  }
}

// Sums of a model in 16 bits are f32: behind the norm they are what its linear layers take.
std::optional<torch::ScalarType> dtype_behind(const torch::Tensor& x, const torch::Tensor& weight) {
  const bool narrow = weight.scalar_type() == torch::kBFloat16 || weight.scalar_type() == torch::kHalf;
  return narrow && x.scalar_type() == torch::kFloat ? std::optional(weight.scalar_type()) : std::nullopt;
}

}  // namespace

torch::Tensor rms_norm(const torch::Tensor& x, const torch::Tensor& weight, std::optional<double> eps,
                       const torch::Tensor& gate) {
  ops::NormOptions options;
  options.eps = eps.value_or(epsilon_of(x.scalar_type()));
  options.gate = gate;
  options.dtype = dtype_behind(x, weight);
  return ops::norm(x, weight, options);
}

RmsNormImpl::RmsNormImpl(std::int64_t size, std::optional<double> eps)
    : weight(register_parameter("weight", torch::ones({size}))), eps_(eps) {}

std::pair<torch::Tensor, torch::Tensor> RmsNormImpl::joined(const torch::Tensor& x, const torch::Tensor& add) {
  const torch::ScalarType sum = torch::promote_types(x.scalar_type(), add.scalar_type());
  if (sum != x.scalar_type()) {
    const torch::Tensor y = x + add;
    return {y, forward(y)};
  }
  return ops::add_norm(x, add, weight, eps_for(x), dtype_behind(x, weight));
}

double RmsNormImpl::eps_for(const torch::Tensor& x) const { return eps_.value_or(epsilon_of(x.scalar_type())); }

}  // namespace mhla
