#include "mhla/modules/exact.h"

#include "mhla/core/error.h"
#include "mhla/kernels/linear/linear.h"
#include "mhla/ops/linear.h"
#include "mhla/ops/ops.h"
#include "mhla/ops/tensor_view.h"

namespace mhla {
namespace {

constexpr const char* kExactEntry = "linear";
thread_local bool exact = false;

// Products of so few rows wait for their weights: ours reads them once as they lie, BLAS packs them first.
constexpr std::int64_t kFewLinearRows = 4;

bool few_rows(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias) {
  const torch::ScalarType type = x.scalar_type();
  return !torch::GradMode::is_enabled() && x.is_cpu() && (type == torch::kFloat || type == torch::kBFloat16) &&
         weight.scalar_type() == type && (!bias.defined() || bias.scalar_type() == type) &&
         x.numel() <= kFewLinearRows * x.size(-1);
}

// The output of a linear layer as it is; its backward pass adds the gradient of the bias.
struct BiasGradient : torch::autograd::Function<BiasGradient> {
  static torch::Tensor forward(torch::autograd::AutogradContext* /*context*/, const torch::Tensor& y,
                               const torch::Tensor& /*bias*/) {
    return y;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 const torch::autograd::variable_list& dout) {
    return {dout[0], ops::row_sum(dout[0])};
  }
};

// Whether the gradient of the bias is a sum of so many rows that LibTorch's takes long.
bool sums_bias(const torch::Tensor& x, const torch::Tensor& bias) {
  constexpr std::int64_t kManyRows = 4096;
  return bias.defined() && torch::GradMode::is_enabled() && bias.requires_grad() &&
         bias.scalar_type() == torch::kFloat && x.numel() >= kManyRows * x.size(-1);
}

torch::Tensor linear(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias) {
  if (ops::linear_layer_fit(x, weight, bias).empty()) return ops::linear_layer(x, weight, bias);
  if (!sums_bias(x, bias)) return torch::linear(x, weight, bias);
  return BiasGradient::apply(torch::linear(x, weight, bias.detach()), bias);
}

}  // namespace

ExactLayers::ExactLayers(bool on) : before_(exact) { exact = on; }
ExactLayers::~ExactLayers() { exact = before_; }

torch::Tensor apply_linear(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias) {
  if (!exact && !few_rows(x, weight, bias)) return linear(x, weight, bias);
  if (torch::GradMode::is_enabled() && (x.requires_grad() || weight.requires_grad()))
    fail(kExactEntry, ": gradients are on, expected inference");
  RECORD_USER_SCOPE("mhla::linear_rows");
  const torch::Tensor flat = x.reshape({-1, x.size(-1)}).contiguous();
  torch::Tensor out = torch::empty({flat.size(0), weight.size(0)}, flat.options());
  const torch::Tensor rows = weight.detach();
  LinearParams params{ops::view_of(flat, kExactEntry, "x"), ops::view_of(rows, kExactEntry, "weight"), {}};
  if (bias.defined()) params.maybe_bias = ops::view_of(bias.detach(), kExactEntry, "bias");
  linear_forward(params, ops::output_view(out, kExactEntry, "out"));
  std::vector<std::int64_t> shape = x.sizes().vec();
  shape.back() = weight.size(0);
  return out.view(shape);
}

torch::Tensor apply_linear(const torch::nn::Linear& layer, const torch::Tensor& x) {
  return apply_linear(x, layer->weight, layer->bias);
}

torch::Tensor apply_linear_erf_gelu(const torch::nn::Linear& layer, const torch::Tensor& x) {
  if (exact || !sums_bias(x, layer->bias)) return ops::erf_gelu(apply_linear(layer, x));
  return ops::erf_gelu(linear(x, layer->weight, layer->bias.detach()), layer->bias);
}

torch::Tensor apply_linear_gelu(const torch::nn::Linear& layer, const torch::Tensor& x) {
  const torch::Tensor &weight = layer->weight, &bias = layer->bias;
  if (!exact && sums_bias(x, bias)) return ops::tanh_gelu(linear(x, weight, bias.detach()), bias);
  const bool narrow = weight.scalar_type() == torch::kBFloat16 || weight.scalar_type() == torch::kHalf;
  if (torch::GradMode::is_enabled() || !x.is_cuda() || !narrow || x.scalar_type() != weight.scalar_type() ||
      !bias.defined() || x.numel() == 0)
    return ops::tanh_gelu(apply_linear(layer, x));
  std::vector<std::int64_t> shape = x.sizes().vec();
  shape.back() = weight.size(0);
  return at::_addmm_activation(bias, x.reshape({-1, x.size(-1)}), weight.t(), 1, 1, /*use_gelu=*/true).view(shape);
}

torch::Tensor apply_silu(const torch::Tensor& x) { return exact ? x / ((-x).exp() + 1) : torch::silu(x); }

}  // namespace mhla
