// torch.ops.mhla.norm: RMSNorm or LayerNorm of the last axis with a gate, in one pass (kernels/norm), with its
// gradient. What the kernels do not take (f64, long rows on a GPU) is computed with LibTorch's operators.
#include <tuple>

#include "mhla/core/error.h"
#include "mhla/kernels/norm/norm.h"
#include "mhla/kernels/norm/norm_rope.h"
#include "mhla/ops/attention_op.h"

namespace mhla::ops {
namespace {

struct NormInputs {
  at::Tensor x, weight, bias, gate;
  double eps;
  bool centered;
};

void expect_inputs(const NormInputs& in, const char* entry) {
  if (in.x.dim() < 1) fail(entry, ": x has no axis");
  if (!at::isFloatingType(in.x.scalar_type()))
    fail(entry, ": x has dtype ", c10::toString(in.x.scalar_type()), ", expected a float");
  for (const auto& [tensor, name] : {std::pair{&in.weight, "weight"}, std::pair{&in.bias, "bias"}}) {
    if (tensor->defined() && (tensor->dim() != 1 || tensor->sym_size(0) != in.x.sym_size(-1)))
      fail(entry, ": ", name, " has shape ", c10::str(tensor->sym_sizes()), ", expected [", c10::str(in.x.sym_size(-1)),
           "]");
    if (tensor->defined() && tensor->device() != in.x.device())
      fail(entry, ": ", name, " is on ", tensor->device().str(), ", expected ", in.x.device().str(), " like x");
  }
  if (in.gate.defined() && in.gate.sym_sizes() != in.x.sym_sizes())
    fail(entry, ": gate has shape ", c10::str(in.gate.sym_sizes()), ", expected ", c10::str(in.x.sym_sizes()),
         " like x");
}

// [rows, X] without a copy where all leading axes lie one step apart, as slices of a wider projection do.
at::Tensor as_rows(const at::Tensor& x) {
  const std::int64_t X = x.size(-1), rows = X == 0 ? 0 : x.numel() / X;
  if (x.dim() == 1) return x.contiguous().view({1, X});
  bool even = X <= 1 || x.stride(-1) == 1;
  for (std::int64_t axis = x.dim() - 2; axis > 0 && even; --axis)
    even = x.size(axis - 1) == 1 || x.stride(axis - 1) == x.size(axis) * x.stride(axis);
  if (!even) return x.contiguous().view({rows, X});
  return x.as_strided({rows, X}, {x.stride(-2), 1});
}

at::Tensor floats(const at::Tensor& x) { return x.defined() ? x.to(at::kFloat).contiguous() : x; }

bool is_narrow(const at::Tensor& x) { return x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf; }

// As the kernels take them; the tensors outlive the call.
struct Flat {
  at::Tensor x, weight, bias, gate;
  NormParams params;
  Flat(const NormInputs& in, const char* entry)
      : x(as_rows(in.x)),  // the kernels of GPUs take a narrow weight as it is
        weight(in.x.is_cuda() && is_narrow(in.weight) ? in.weight.contiguous() : floats(in.weight)),
        bias(floats(in.bias)) {
    if (in.gate.defined()) gate = as_rows(in.gate.to(in.x.scalar_type()));
    params.x = view_of(x, entry, "x"), params.weight = view_of(weight, entry, "weight");
    params.maybe_bias = view_of(bias, entry, "bias"), params.maybe_gate = view_of(gate, entry, "gate");
    params.eps = in.eps, params.centered = in.centered;
  }
};

bool kernels_take(const NormInputs& in, at::ScalarType out) {
  const auto dtype = [](at::ScalarType t) {
    return t == at::kBFloat16 ? DType::kBF16 : t == at::kHalf ? DType::kF16 : DType::kF32;
  };
  if (!is_kernel_dtype(in.x.scalar_type()) || !is_kernel_dtype(out)) return false;
  NormParams p;
  p.x = ConstView(nullptr, dtype(in.x.scalar_type()), {1, in.x.size(-1)});
  if (in.x.is_cuda()) p.x.device = in.x.get_device();
  return norm_fit(p, dtype(out)).empty();
}

// RMSNorm of rows that are too long for norm(), forward on a GPU; undefined where the kernel does not take it.
at::Tensor long_rows(const NormInputs& in, at::ScalarType type) {
  constexpr const char* kEntry = "norm";
  if (!in.x.is_cuda() || in.x.numel() == 0 || in.centered || in.bias.defined() || in.gate.defined()) return {};
  const at::Tensor rows = as_rows(in.x), weight = in.weight.contiguous();
  const at::Tensor out = at::empty(in.x.sizes(), in.x.options().dtype(type));
  NormRopeParams p;
  p.x = view_of(rows, kEntry, "x"), p.weight = view_of(weight, kEntry, "weight"), p.eps = in.eps;
  const View to = output_view(out.view(rows.sizes()), kEntry, "out");
  if (!norm_rope_fit(p, to.dtype).empty()) return {};
  RunOptions run;
  run.stream = current_stream(in.x);
  norm_rope(p, to, run);
  return out;
}

struct Wide {  // for the formulas
  at::Tensor unit, factor, weight, bias, sigmoid, gate;
  explicit Wide(const NormInputs& in) {
    const at::ScalarType type = in.x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    at::Tensor x = in.x.to(type);
    if (in.centered) x = x - x.mean(-1, true);
    factor = (x.square().mean(-1, true) + in.eps).rsqrt();
    unit = x * factor, weight = in.weight.to(type);
    if (in.bias.defined()) bias = in.bias.to(type);
    if (in.gate.defined()) gate = in.gate.to(type), sigmoid = gate.sigmoid();
  }
  [[nodiscard]] at::Tensor affine() const { return bias.defined() ? unit * weight + bias : unit * weight; }
};

at::Tensor norm_forward(const NormInputs& in, at::ScalarType type) {
  constexpr const char* kEntry = "norm";
  expect_inputs(in, kEntry);
  if (!kernels_take(in, type)) {
    if (const at::Tensor out = long_rows(in, type); out.defined()) return out;
    const Wide wide(in);
    const at::Tensor y = wide.affine();
    return (wide.gate.defined() ? y * wide.gate * wide.sigmoid : y).to(type);
  }
  const Flat flat(in, kEntry);
  const at::Tensor out = at::empty(in.x.sizes(), in.x.options().dtype(type));
  RunOptions run;
  if (in.x.is_cuda()) run.stream = current_stream(in.x);
  norm(flat.params, output_view(out.view({flat.x.size(0), flat.x.size(1)}), kEntry, "out"), run);
  return out;
}

// dx, dweight, dbias, dgate; the last three where their inputs are given.
// `plain`: with LibTorch's operators, which can be differentiated again.
std::vector<at::Tensor> norm_gradients(const at::Tensor& dout, const NormInputs& in, bool plain) {
  constexpr const char* kEntry = "norm_backward";
  if (plain || !kernels_take(in, dout.scalar_type())) {
    const Wide wide(in);
    at::Tensor d = dout.to(wide.unit.scalar_type()), dgate;
    if (wide.gate.defined()) {
      dgate = d * wide.affine() * wide.sigmoid * (1 + wide.gate * (1 - wide.sigmoid));
      d = d * wide.gate * wide.sigmoid;
    }
    const at::Tensor h = d * wide.weight;
    at::Tensor dx = h - wide.unit * (h * wide.unit).mean(-1, true);
    if (in.centered) dx = dx - h.mean(-1, true);
    const auto over_rows = [](const at::Tensor& x) { return x.dim() == 1 ? x : x.flatten(0, -2).sum(0); };
    return {(dx * wide.factor).to(in.x.scalar_type()), over_rows(d * wide.unit).to(in.weight.scalar_type()),
            in.bias.defined() ? over_rows(d).to(in.bias.scalar_type()) : at::Tensor(),
            dgate.defined() ? dgate.to(in.gate.scalar_type()) : at::Tensor()};
  }
  const Flat flat(in, kEntry);
  const at::Tensor rows = as_rows(dout), dx = at::empty(in.x.sizes(), in.x.options());
  const at::Tensor dweight = at::empty(flat.weight.sizes(), flat.weight.options().dtype(at::kFloat));
  const at::Tensor dbias = in.bias.defined() ? at::empty_like(flat.bias) : at::Tensor();
  const at::Tensor dgate = in.gate.defined() ? at::empty(in.x.sizes(), in.x.options()) : at::Tensor();
  const auto flat_view = [&](const at::Tensor& t, const char* name) {
    return t.defined() ? output_view(t.view({flat.x.size(0), flat.x.size(1)}), kEntry, name) : View();
  };
  NormGrads grads;
  grads.dout = view_of(rows, kEntry, "dout"), grads.dx = flat_view(dx, "dx"),
  grads.maybe_dgate = flat_view(dgate, "dgate");
  grads.maybe_dweight = output_view(dweight, kEntry, "dweight");
  if (dbias.defined()) grads.maybe_dbias = output_view(dbias, kEntry, "dbias");
  RunOptions run;
  at::Tensor memory;
  if (in.x.is_cuda()) {
    run.stream = current_stream(in.x);
    memory = device_workspace(in.x, norm_workspace(flat.params));
    run.workspace = bytes_of(memory);
  }
  norm_backward(flat.params, grads, run);
  return {dx, dweight.to(in.weight.scalar_type()), dbias.defined() ? dbias.to(in.bias.scalar_type()) : dbias,
          dgate.defined() ? dgate.to(in.gate.scalar_type()) : dgate};
}

NormInputs inputs_of(const at::Tensor& x, const at::Tensor& weight, const Optional<at::Tensor>& bias,
                     const Optional<at::Tensor>& gate, double eps, bool centered) {
  return {x, weight, value_or_undefined(bias), value_or_undefined(gate), eps, centered};
}

at::Tensor norm_kernel(const at::Tensor& x, const at::Tensor& weight, const Optional<at::Tensor>& bias,
                       const Optional<at::Tensor>& gate, double eps, bool centered,
                       const Optional<at::ScalarType>& dtype) {
  return norm_forward(inputs_of(x, weight, bias, gate, eps, centered), dtype.value_or(x.scalar_type()));
}

at::Tensor norm_meta(const at::Tensor& x, const at::Tensor& weight, const Optional<at::Tensor>& bias,
                     const Optional<at::Tensor>& gate, double eps, bool centered,
                     const Optional<at::ScalarType>& dtype) {
  expect_inputs(inputs_of(x, weight, bias, gate, eps, centered), "norm");
  return at::empty_symint(x.sym_sizes(), x.options().dtype(dtype.value_or(x.scalar_type())));
}

// Gradients of what is given, in the order of the arguments.
template <bool kPlain>
std::vector<at::Tensor> norm_backward_kernel(const at::Tensor& dout, const at::Tensor& x, const at::Tensor& weight,
                                             const Optional<at::Tensor>& bias, const Optional<at::Tensor>& gate,
                                             double eps, bool centered) {
  std::vector<at::Tensor> given;
  for (const at::Tensor& g : norm_gradients(dout, inputs_of(x, weight, bias, gate, eps, centered), kPlain)) {
    if (g.defined()) given.push_back(g);
  }
  return given;
}

std::vector<at::Tensor> norm_backward_meta(const at::Tensor& /*dout*/, const at::Tensor& x, const at::Tensor& weight,
                                           const Optional<at::Tensor>& bias, const Optional<at::Tensor>& gate,
                                           double /*eps*/, bool /*centered*/) {
  std::vector<at::Tensor> given{at::empty_symint(x.sym_sizes(), x.options()),
                                at::empty_symint(weight.sym_sizes(), weight.options())};
  if (bias.has_value()) given.push_back(at::empty_symint(bias->sym_sizes(), bias->options()));
  if (gate.has_value()) given.push_back(at::empty_symint(gate->sym_sizes(), gate->options()));
  return given;
}

using NormCall = at::Tensor(const at::Tensor&, const at::Tensor&, const Optional<at::Tensor>&,
                            const Optional<at::Tensor>&, double, bool, const Optional<at::ScalarType>&);
using NormBackwardCall = std::vector<at::Tensor>(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                                 const Optional<at::Tensor>&, const Optional<at::Tensor>&, double,
                                                 bool);

const auto& norm_backward_handle() {
  static const auto handle =
      c10::Dispatcher::singleton().findSchemaOrThrow("mhla::norm_backward", "").typed<NormBackwardCall>();
  return handle;
}
const auto& norm_handle() {
  static const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow("mhla::norm", "").typed<NormCall>();
  return handle;
}

struct NormFunction : torch::autograd::Function<NormFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const Optional<at::Tensor>& bias, const Optional<at::Tensor>& gate, double eps,
                            bool centered, const Optional<at::ScalarType>& dtype) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({x, weight, value_or_undefined(bias), value_or_undefined(gate)});
    context->saved_data["eps"] = eps, context->saved_data["centered"] = centered;
    return norm_handle().call(x, weight, bias, gate, eps, centered, dtype);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& dout) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const std::vector<at::Tensor> given =
        norm_backward_handle().call(dout[0], saved[0], saved[1], maybe(saved[2]), maybe(saved[3]),
                                    context->saved_data["eps"].toDouble(), context->saved_data["centered"].toBool());
    torch::autograd::variable_list all(7);  // one per argument of forward
    std::size_t next = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      if (saved[i].defined()) all[i] = given[next++];
    }
    return all;
  }
};

at::Tensor norm_autograd(const at::Tensor& x, const at::Tensor& weight, const Optional<at::Tensor>& bias,
                         const Optional<at::Tensor>& gate, double eps, bool centered,
                         const Optional<at::ScalarType>& dtype) {
  const at::Tensor given_bias = value_or_undefined(bias), given_gate = value_or_undefined(gate);
  refuse_forward_mode(std::array{&x, &weight, &given_bias, &given_gate}, "norm");
  return NormFunction::apply(x, weight, bias, gate, eps, centered, dtype);
}

// What stands behind a norm are linear layers: the result has the dtype that they take.
at::Tensor norm_autocast(const at::Tensor& x, const at::Tensor& weight, const Optional<at::Tensor>& bias,
                         const Optional<at::Tensor>& gate, double eps, bool centered,
                         const Optional<at::ScalarType>& dtype) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const at::ScalarType own = x.scalar_type() == at::kDouble
                                 ? at::kDouble
                                 : at::autocast::get_lower_precision_fp_from_device_type(x.device().type());
  return norm_handle().call(x, weight, bias, gate, eps, centered, dtype.value_or(own));
}

std::vector<at::Tensor> norm_backward_autograd(const at::Tensor& dout, const at::Tensor& x, const at::Tensor& weight,
                                               const Optional<at::Tensor>& bias, const Optional<at::Tensor>& gate,
                                               double eps, bool centered) {
  bool differentiate = false;
  for (const at::Tensor& t : {dout, x, weight, value_or_undefined(bias), value_or_undefined(gate)})
    differentiate = differentiate || wants_gradient(t);
  if (differentiate && at::GradMode::is_enabled())
    return norm_backward_kernel<true>(dout, x, weight, bias, gate, eps, centered);
  const at::AutoDispatchBelowADInplaceOrView below;
  return norm_backward_handle().call(dout, x, weight, bias, gate, eps, centered);
}

TORCH_LIBRARY_FRAGMENT(mhla, m) {
  m.def(
      "norm(Tensor x, Tensor weight, Tensor? bias=None, Tensor? gate=None, float eps=1e-6, bool centered=False, "
      "ScalarType? dtype=None) -> Tensor");
  m.def(
      "norm_backward(Tensor dout, Tensor x, Tensor weight, Tensor? bias, Tensor? gate, float eps, bool centered) "
      "-> Tensor[]");
}
template <class Library>
void implement_norm(Library& m) {
  m.impl("norm", norm_kernel);
  m.impl("norm_backward", norm_backward_kernel<false>);
}
TORCH_LIBRARY_IMPL(mhla, CPU, m) { implement_norm(m); }
TORCH_LIBRARY_IMPL(mhla, CUDA, m) { implement_norm(m); }
TORCH_LIBRARY_IMPL(mhla, Meta, m) {
  m.impl("norm", norm_meta);
  m.impl("norm_backward", norm_backward_meta);
}
TORCH_LIBRARY_IMPL(mhla, Autograd, m) {
  m.impl("norm", norm_autograd);
  m.impl("norm_backward", norm_backward_autograd);
}
TORCH_LIBRARY_IMPL(mhla, AutocastCPU, m) { m.impl("norm", norm_autocast); }
TORCH_LIBRARY_IMPL(mhla, Autocast, m) { m.impl("norm", norm_autocast); }

}  // namespace

at::Tensor norm(const at::Tensor& x, const at::Tensor& weight, const NormOptions& options) {
  return norm_handle().call(x, weight, maybe(options.bias), maybe(options.gate), options.eps, options.centered,
                            options.dtype ? Optional<at::ScalarType>(*options.dtype) : kNone);
}

}  // namespace mhla::ops
