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

}  // namespace

torch::Tensor rms_norm(const torch::Tensor& x, const torch::Tensor& weight, std::optional<double> eps,
                       const torch::Tensor& gate) {
  ops::NormOptions options;
  options.eps = eps.value_or(epsilon_of(x.scalar_type()));
  options.gate = gate;
  // Sums of a model in 16 bits are f32: behind the norm they are what its linear layers take.
  const bool narrow = weight.scalar_type() == torch::kBFloat16 || weight.scalar_type() == torch::kHalf;
  if (narrow && x.scalar_type() == torch::kFloat) options.dtype = weight.scalar_type();
  return ops::norm(x, weight, options);
}

RmsNormImpl::RmsNormImpl(std::int64_t size, std::optional<double> eps)
    : weight(register_parameter("weight", torch::ones({size}))), eps_(eps) {}

double RmsNormImpl::eps_for(const torch::Tensor& x) const { return eps_.value_or(epsilon_of(x.scalar_type())); }

}  // namespace mhla
