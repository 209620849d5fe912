#include "mhla/modules/norms.h"

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

torch::Tensor rms_norm(const torch::Tensor& x, const torch::Tensor& weight, std::optional<double> eps) {
  const torch::Tensor wide = x.scalar_type() == torch::kDouble ? x : x.to(torch::kFloat);
  const torch::Tensor mean = wide.square().mean(-1, /*keepdim=*/true);
  return (wide * torch::rsqrt(mean + eps.value_or(epsilon_of(x.scalar_type())))).to(x.scalar_type()) * weight;
}

RmsNormImpl::RmsNormImpl(std::int64_t size, std::optional<double> eps)
    : weight(register_parameter("weight", torch::ones({size}))), eps_(eps) {}

}  // namespace mhla
