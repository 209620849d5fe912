// x + add and RMSNorm of it in one pass (kernels/norm) with its gradient. What the kernels do not take is left to
// LibTorch's sum and to ops::norm.
#include "mhla/core/error.h"
#include "mhla/kernels/norm/norm.h"
#include "mhla/ops/attention_op.h"

namespace mhla::ops {
namespace {

constexpr const char* kAddNormEntry = "add_norm";

bool kernels_take(const at::Tensor& x, const at::Tensor& add, const at::Tensor& weight) {
  if (!x.is_cuda() || x.dim() < 2 || x.numel() == 0) return false;
  for (const at::Tensor* t : {&x, &add, &weight}) {
    if (!is_kernel_dtype(t->scalar_type())) return false;
  }
  if (add.sizes() != x.sizes() || add.device() != x.device() || weight.device() != x.device()) return false;
  NormParams p;
  p.x = ConstView(nullptr, DType::kF32, {1, x.size(-1)});
  p.x.device = static_cast<int>(x.get_device());
  return norm_fit(p, DType::kF32).empty();
}

at::Tensor rows_of(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

struct AddNormFunction : torch::autograd::Function<AddNormFunction> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                                                const at::Tensor& add, const at::Tensor& weight, double eps,
                                                at::ScalarType type) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const at::Tensor own = weight.contiguous(), from = rows_of(x.contiguous()), branch = rows_of(add.contiguous());
    const at::Tensor sum = at::empty(x.sizes(), x.options()), y = at::empty(x.sizes(), x.options().dtype(type));
    NormParams params;
    params.x = view_of(from, kAddNormEntry, "x"), params.maybe_add = view_of(branch, kAddNormEntry, "add");
    params.weight = view_of(own, kAddNormEntry, "weight"), params.eps = eps;
    RunOptions run;
    run.stream = current_stream(x);
    mhla::norm(params, output_view(rows_of(y), kAddNormEntry, "out"), run,
               output_view(rows_of(sum), kAddNormEntry, "sum"));
    context->save_for_backward({sum, own});
    context->saved_data["eps"] = eps, context->saved_data["add"] = add.scalar_type();
    return {sum, y};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& given) {
    if (at::GradMode::is_enabled())
      fail(kAddNormEntry, ": second derivatives are not there on a GPU, expected gradients without create_graph");
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const at::Tensor &sum = saved[0], &weight = saved[1];
    const at::Tensor from = rows_of(sum), dx = at::empty_like(sum);
    const at::ScalarType type = context->saved_data["add"].toScalarType();
    const at::Tensor dadd = type == sum.scalar_type() ? dx : at::empty(sum.sizes(), sum.options().dtype(type));
    const at::Tensor dweight = at::empty(weight.sizes(), weight.options().dtype(at::kFloat));
    const at::Tensor dout = rows_of((given[1].defined() ? given[1] : at::zeros_like(sum)).contiguous());
    const at::Tensor dsum = given[0].defined() ? rows_of(given[0].to(sum.scalar_type()).contiguous()) : at::Tensor();
    NormParams params;
    params.x = view_of(from, kAddNormEntry, "x"), params.weight = view_of(weight, kAddNormEntry, "weight");
    params.eps = context->saved_data["eps"].toDouble();
    NormGrads grads;
    grads.dout = view_of(dout, kAddNormEntry, "dout"), grads.dx = output_view(rows_of(dx), kAddNormEntry, "dx");
    grads.maybe_dweight = output_view(dweight, kAddNormEntry, "dweight");
    if (dsum.defined()) grads.maybe_dsum = view_of(dsum, kAddNormEntry, "dsum");
    if (!dadd.is_same(dx)) grads.maybe_dadd = output_view(rows_of(dadd), kAddNormEntry, "dadd");
    RunOptions run;
    run.stream = current_stream(sum);
    const at::Tensor memory = device_workspace(sum, norm_workspace(params));
    run.workspace = bytes_of(memory);
    norm_backward(params, grads, run);
    return {dx, dadd, dweight.to(weight.scalar_type()), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

std::pair<at::Tensor, at::Tensor> add_norm(const at::Tensor& x, const at::Tensor& add, const at::Tensor& weight,
                                           double eps, std::optional<at::ScalarType> dtype) {
  if (!kernels_take(x, add, weight)) {
    const at::Tensor sum = x + add;
    NormOptions options;
    options.eps = eps, options.dtype = dtype;
    return {sum, norm(sum, weight, options)};
  }
  at::ScalarType type = x.scalar_type();
  if (autocast_on(at::kCUDA)) type = at::autocast::get_lower_precision_fp_from_device_type(at::kCUDA);
  const torch::autograd::variable_list both = AddNormFunction::apply(x, add, weight, eps, dtype.value_or(type));
  return {both[0], both[1]};
}

}  // namespace mhla::ops
