// tanh-GELU behind a linear layer, whose backward pass also sums the gradient of the layer's bias
// (kernels/row_sum/row_sum.h). What the kernel does not take, and second derivatives, are LibTorch's operators.
#include "mhla/core/error.h"
#include "mhla/kernels/row_sum/row_sum.h"
#include "mhla/ops/attention_op.h"

namespace mhla::ops {
namespace {

constexpr const char* kGeluEntry = "gelu";

struct GeluFunction : torch::autograd::Function<GeluFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& pre, const at::Tensor& bias) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({pre});
    context->saved_data["bias"] = static_cast<std::int64_t>(bias.scalar_type());
    return at::gelu(pre, "tanh");
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& given) {
    const at::Tensor pre = context->get_saved_variables()[0];
    const auto type = static_cast<at::ScalarType>(context->saved_data["bias"].toInt());
    if (at::GradMode::is_enabled()) {
      const at::Tensor dpre = at::gelu_backward(given[0], pre, "tanh");
      return {dpre, dpre.reshape({-1, dpre.size(-1)}).sum(0).to(type)};
    }
    const at::Tensor rows = pre.reshape({-1, pre.size(-1)}), dout = given[0].reshape(rows.sizes()).contiguous();
    const bool near = rows.is_cuda() && rows.is_contiguous() && rows.numel() > 0 &&
                      dout.scalar_type() == rows.scalar_type() && is_kernel_dtype(rows.scalar_type());
    if (!near || !row_sum_fit(view_of(rows, kGeluEntry, "x")).empty()) {
      const at::Tensor dpre = at::gelu_backward(given[0], pre, "tanh");
      return {dpre, row_sum(dpre).to(type)};
    }
    const at::Tensor dpre = at::empty_like(rows);
    const at::Tensor sum = at::empty({rows.size(1)}, rows.options().dtype(at::kFloat));
    const ConstView view = view_of(rows, kGeluEntry, "x");
    RunOptions run;
    run.stream = current_stream(rows);
    const at::Tensor memory = device_workspace(rows, row_sum_workspace(view));
    run.workspace = bytes_of(memory);
    gelu_row_sum(view_of(dout, kGeluEntry, "dout"), view, output_view(dpre, kGeluEntry, "dx"),
                 output_view(sum, kGeluEntry, "dbias"), run);
    return {dpre.view(pre.sizes()), sum.to(type)};
  }
};

}  // namespace

at::Tensor gelu(const at::Tensor& x, const at::Tensor& bias) {
  if (x.dim() < 1 || bias.dim() != 1 || bias.size(0) != x.size(-1))
    fail(kGeluEntry, ": x has shape ", c10::str(x.sizes()), " and bias ", c10::str(bias.sizes()),
         ", expected [..., C] and [C]");
  return GeluFunction::apply(x, bias);
}

}  // namespace mhla::ops
