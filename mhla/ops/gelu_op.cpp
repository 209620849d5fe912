// GELU, alone or after a linear layer, whose backward pass then also sums the gradient of the layer's bias
// (kernels/row_sum/row_sum.h). What the kernels do not take, and second derivatives, are LibTorch's operators.
#include "mhla/core/error.h"
#include "mhla/kernels/row_sum/row_sum.h"
#include "mhla/ops/attention_op.h"

namespace mhla::ops {
namespace {

constexpr const char* kGeluEntry = "gelu";

const char* approximation(Gelu kind) { return kind == Gelu::kTanh ? "tanh" : "none"; }  // LibTorch's names

at::Tensor gelu_values(Gelu kind, const at::Tensor& x) {
  if (!x.is_cpu() || !is_kernel_dtype(x.scalar_type()) || x.numel() == 0) return at::gelu(x, approximation(kind));
  RECORD_USER_SCOPE("mhla::gelu");
  const at::Tensor flat = x.contiguous().view({-1}), y = at::empty_like(flat);
  mhla::gelu(kind, view_of(flat, kGeluEntry, "x"), output_view(y, kGeluEntry, "y"));
  return y.view(x.sizes());
}

struct GeluFunction : torch::autograd::Function<GeluFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, Gelu kind, const at::Tensor& pre,
                            const Optional<at::Tensor>& bias) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({pre});
    context->saved_data["kind"] = static_cast<std::int64_t>(kind);
    context->saved_data["bias"] = bias.has_value() ? static_cast<std::int64_t>(bias->scalar_type()) : -1;
    return gelu_values(kind, pre);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& given) {
    const at::Tensor pre = context->get_saved_variables()[0];
    const std::int64_t type = context->saved_data["bias"].toInt();
    const auto kind = static_cast<Gelu>(context->saved_data["kind"].toInt());
    const auto of_bias = [type](const at::Tensor& sum) { return sum.to(static_cast<at::ScalarType>(type)); };
    if (at::GradMode::is_enabled()) {
      const at::Tensor dpre = at::gelu_backward(given[0], pre, approximation(kind));
      return {{}, dpre, type < 0 ? at::Tensor() : of_bias(dpre.reshape({-1, dpre.size(-1)}).sum(0))};
    }
    const at::Tensor rows = pre.dim() == 0 ? pre.reshape({1, 1}) : pre.reshape({-1, pre.size(-1)});
    const at::Tensor dout = given[0].reshape(rows.sizes()).contiguous();
    const bool near = (rows.is_cuda() || rows.is_cpu()) && rows.is_contiguous() && rows.numel() > 0 &&
                      dout.scalar_type() == rows.scalar_type() && is_kernel_dtype(rows.scalar_type());
    if (!near || !row_sum_fit(view_of(rows, kGeluEntry, "x")).empty()) {
      const at::Tensor dpre = at::gelu_backward(given[0], pre, approximation(kind));
      return {{}, dpre, type < 0 ? at::Tensor() : of_bias(row_sum(dpre))};
    }
    const at::Tensor dpre = at::empty_like(rows);
    const at::Tensor sum = at::empty({rows.size(1)}, rows.options().dtype(at::kFloat));
    const ConstView view = view_of(rows, kGeluEntry, "x");
    RunOptions run;
    run.stream = current_stream(rows);
    at::Tensor memory;
    if (rows.is_cuda()) memory = device_workspace(rows, row_sum_workspace(view)), run.workspace = bytes_of(memory);
    gelu_row_sum(kind, view_of(dout, kGeluEntry, "dout"), view, output_view(dpre, kGeluEntry, "dx"),
                 output_view(sum, kGeluEntry, "dbias"), run);
    return {{}, dpre.view(pre.sizes()), type < 0 ? at::Tensor() : of_bias(sum)};
  }
};

at::Tensor apply_gelu(Gelu kind, const at::Tensor& x) {
  if (x.is_cuda()) return at::gelu(x, approximation(kind));  // where LibTorch's passes are as fast as the memory
  return at::GradMode::is_enabled() && x.requires_grad() ? GeluFunction::apply(kind, x, kNone) : gelu_values(kind, x);
}

at::Tensor apply_gelu(Gelu kind, const at::Tensor& x, const at::Tensor& bias) {
  if (x.dim() < 1 || bias.dim() != 1 || bias.size(0) != x.size(-1))
    fail(kGeluEntry, ": x has shape ", c10::str(x.sizes()), " and bias ", c10::str(bias.sizes()),
         ", expected [..., C] and [C]");
  return GeluFunction::apply(kind, x, maybe(bias));
}

}  // namespace

at::Tensor erf_gelu(const at::Tensor& x) { return apply_gelu(Gelu::kErf, x); }
at::Tensor erf_gelu(const at::Tensor& x, const at::Tensor& bias) { return apply_gelu(Gelu::kErf, x, bias); }
at::Tensor tanh_gelu(const at::Tensor& x) { return apply_gelu(Gelu::kTanh, x); }
at::Tensor tanh_gelu(const at::Tensor& x, const at::Tensor& bias) { return apply_gelu(Gelu::kTanh, x, bias); }

}  // namespace mhla::ops
