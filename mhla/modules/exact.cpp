#include "mhla/modules/exact.h"

#include "mhla/core/error.h"
#include "mhla/kernels/linear/linear.h"
#include "mhla/ops/tensor_view.h"

namespace mhla {
namespace {

constexpr const char* kEntry = "linear";
thread_local bool exact = false;

// Products of so few rows wait for their weights: ours reads them once as they lie, BLAS packs them first.
constexpr std::int64_t kFewRows = 4;

bool few_rows(const torch::Tensor& x, const torch::Tensor& weight) {
  return !torch::GradMode::is_enabled() && x.is_cpu() && x.scalar_type() == torch::kFloat &&
         weight.scalar_type() == torch::kFloat && x.numel() <= kFewRows * x.size(-1);
}

}  // namespace

ExactLayers::ExactLayers(bool on) : before_(exact) { exact = on; }
ExactLayers::~ExactLayers() { exact = before_; }

torch::Tensor apply_linear(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias) {
  if (!exact && !few_rows(x, weight)) return torch::linear(x, weight, bias);
  if (torch::GradMode::is_enabled() && (x.requires_grad() || weight.requires_grad()))
    fail(kEntry, ": gradients are on, expected inference");
  const torch::Tensor flat = x.reshape({-1, x.size(-1)}).contiguous();
  torch::Tensor out = torch::empty({flat.size(0), weight.size(0)}, flat.options());
  const torch::Tensor rows = weight.detach();
  LinearParams params{ops::view_of(flat, kEntry, "x"), ops::view_of(rows, kEntry, "weight"), {}};
  if (bias.defined()) params.maybe_bias = ops::view_of(bias.detach(), kEntry, "bias");
  linear_forward(params, ops::output_view(out, kEntry, "out"));
  std::vector<std::int64_t> shape = x.sizes().vec();
  shape.back() = weight.size(0);
  return out.view(shape);
}

torch::Tensor apply_linear(const torch::nn::Linear& layer, const torch::Tensor& x) {
  return apply_linear(x, layer->weight, layer->bias);
}

torch::Tensor apply_silu(const torch::Tensor& x) { return exact ? x / ((-x).exp() + 1) : torch::silu(x); }

}  // namespace mhla
