// What stands between two branches of a diffusion transformer (kernels/norm/modulated_norm.h) with its gradient. What
// the kernels do not take (f64, odd rows on a GPU), and second derivatives, are LibTorch's operators.
#include "mhla/core/error.h"
#include "mhla/kernels/norm/modulated_norm.h"
#include "mhla/ops/attention_op.h"

namespace mhla::ops {
namespace {

constexpr const char* kModulatedEntry = "modulated_norm";

// A sample's row [B, X] or [B, 1, X] as the kernels take it.
at::Tensor sample_rows(const at::Tensor& x) {
  if (!x.defined()) return x;
  const at::Tensor rows = x.dim() == 3 ? x.squeeze(1) : x;
  return rows.stride(-1) == 1 && rows.stride(0) % 4 == 0 && rows.storage_offset() % 4 == 0 ? rows : rows.contiguous();
}

struct Modulated {  // tensors that outlive the call
  at::Tensor x, branch, gate, scale, shift;
  ModulatedNormParams params;
  Modulated(const at::Tensor& given, const ModulatedNormInputs& in, double eps)
      : x(given.contiguous()),
        branch(in.branch.defined() ? in.branch.contiguous() : in.branch),
        gate(sample_rows(in.gate)),
        scale(sample_rows(in.scale)),
        shift(sample_rows(in.shift)) {
    const auto view = [](const at::Tensor& t, const char* name) {
      return t.defined() ? view_of(t, kModulatedEntry, name) : ConstView();
    };
    params.x = view(x, "x"), params.maybe_branch = view(branch, "branch"), params.maybe_gate = view(gate, "gate");
    params.scale = view(scale, "scale"), params.shift = view(shift, "shift"), params.eps = eps;
  }
};

bool kernels_take(const ModulatedNormInputs& in, at::ScalarType out) {
  if (!(in.x.is_cuda() || in.x.is_cpu()) || in.x.dim() != 3 || in.x.numel() == 0) return false;
  for (const at::Tensor* t : {&in.x, &in.branch, &in.gate, &in.scale, &in.shift}) {
    if (t->defined() && !is_kernel_dtype(t->scalar_type())) return false;
  }
  const auto dtype = [](at::ScalarType t) {
    return t == at::kBFloat16 ? DType::kBF16
           : t == at::kHalf   ? DType::kF16
           : t == at::kFloat  ? DType::kF32
                              : DType::kF64;
  };
  ModulatedNormParams p;
  p.x = ConstView(nullptr, dtype(in.x.scalar_type()), {in.x.size(0), in.x.size(1), in.x.size(2)});
  if (in.x.is_cuda()) p.x.device = static_cast<int>(in.x.get_device());
  return modulated_norm_fit(p, dtype(out)).empty();
}

at::Tensor wide_row(const at::Tensor& row) { return row.dim() == 3 ? row : row.unsqueeze(1); }

// The gradients with create_graph: of what has gradients itself. `saved`: s, branch, gate, scale, shift.
torch::autograd::variable_list by_operators(const torch::autograd::variable_list& saved, const at::Tensor& dout,
                                            const at::Tensor& dsum, double eps) {
  const at::Tensor &sum = saved[0], &branch = saved[1], &gate = saved[2], &scale = saved[3], &shift = saved[4];
  const at::Tensor s = sum.to(at::kFloat), centered = s - s.mean(-1, true);
  const at::Tensor factor = (centered.square().mean(-1, true) + eps).rsqrt(), unit = centered * factor;
  const at::Tensor d = dout.to(at::kFloat), h = d * (1 + wide_row(scale));
  at::Tensor ds = factor * (h - h.mean(-1, true) - unit * (h * unit).mean(-1, true));
  if (dsum.defined()) ds = ds + dsum;
  const auto row = [](const at::Tensor& x, const at::Tensor& like) {
    return x.sum(1).to(like.scalar_type()).view(like.sizes());
  };
  at::Tensor dbranch, dgate;
  if (branch.defined()) dbranch = (ds * wide_row(gate)).to(branch.scalar_type()), dgate = row(ds * branch, gate);
  return {ds.to(sum.scalar_type()), dbranch, dgate, row(d * unit, scale), row(d, shift), at::Tensor(), at::Tensor()};
}

struct ModulatedNormFunction : torch::autograd::Function<ModulatedNormFunction> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                                                const Optional<at::Tensor>& maybe_branch,
                                                const Optional<at::Tensor>& maybe_gate, const at::Tensor& scale,
                                                const at::Tensor& shift, double eps, at::ScalarType type) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const at::Tensor branch = value_or_undefined(maybe_branch), gate = value_or_undefined(maybe_gate);
    const Modulated m(x, {x, branch, gate, scale, shift}, eps);
    const at::Tensor y = at::empty(x.sizes(), x.options().dtype(type));
    const at::Tensor sum = branch.defined() ? at::empty(x.sizes(), x.options()) : m.x;
    RunOptions run;
    run.stream = current_stream(x);
    modulated_norm(m.params, branch.defined() ? output_view(sum, kModulatedEntry, "sum") : View(),
                   output_view(y, kModulatedEntry, "out"), run);
    context->save_for_backward({sum, branch, gate, scale, shift});
    context->saved_data["eps"] = eps;
    context->saved_data["samples"] = std::vector<std::int64_t>(shift.sizes().vec());
    return branch.defined() ? torch::autograd::variable_list{sum, y} : torch::autograd::variable_list{y};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& given) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const at::Tensor &sum = saved[0], &branch = saved[1], &shift = saved[4];
    const bool joins = branch.defined();
    const at::Tensor dsum = joins ? given[0] : at::Tensor();
    at::Tensor dout = joins ? given[1] : given[0];
    if (!dout.defined()) dout = at::zeros_like(sum);
    if (at::GradMode::is_enabled()) return by_operators(saved, dout, dsum, context->saved_data["eps"].toDouble());
    dout = dout.contiguous();
    const Modulated m(sum, {sum, branch, saved[2], saved[3], shift}, context->saved_data["eps"].toDouble());
    const at::Tensor dx = at::empty_like(sum), dbranch = joins ? at::empty_like(branch) : at::Tensor();
    const at::Tensor own = dsum.defined() ? dsum.to(sum.scalar_type()).contiguous() : dsum;
    const at::Tensor dmodulation = at::empty({sum.size(0), 3, sum.size(2)}, sum.options().dtype(at::kFloat));
    ModulatedNormGrads grads;
    grads.dout = view_of(dout, kModulatedEntry, "dout"), grads.dx = output_view(dx, kModulatedEntry, "dx");
    if (own.defined()) grads.maybe_dsum = view_of(own, kModulatedEntry, "dsum");
    if (joins) grads.maybe_dbranch = output_view(dbranch, kModulatedEntry, "dbranch");
    grads.dmodulation = output_view(dmodulation, kModulatedEntry, "dmodulation");
    RunOptions run;
    run.stream = current_stream(sum);
    at::Tensor memory;
    if (sum.is_cuda()) {
      memory = device_workspace(sum, modulated_norm_workspace(m.params));
      run.workspace = bytes_of(memory);
    }
    modulated_norm_backward(m.params, grads, run);
    const std::vector<std::int64_t> samples = context->saved_data["samples"].toIntVector();
    const auto row = [&](std::int64_t which, at::ScalarType type) {
      return dmodulation.select(1, which).to(type).view(samples);
    };
    const at::ScalarType type = shift.scalar_type();
    return {dx, dbranch, joins ? row(2, type) : at::Tensor(), row(1, type), row(0, type), at::Tensor(), at::Tensor()};
  }
};

void expect_inputs(const ModulatedNormInputs& in) {
  if (in.x.dim() != 3) fail(kModulatedEntry, ": x has shape ", c10::str(in.x.sizes()), ", expected [B, N, X]");
  if (in.branch.defined() != in.gate.defined()) fail(kModulatedEntry, ": branch and gate go together");
  if (in.branch.defined() && in.branch.sizes() != in.x.sizes())
    fail(kModulatedEntry, ": branch has shape ", c10::str(in.branch.sizes()), ", expected ", c10::str(in.x.sizes()),
         " like x");
  const std::vector<std::int64_t> flat{in.x.size(0), in.x.size(2)}, row{in.x.size(0), 1, in.x.size(2)};
  for (const auto& [tensor, name] : {std::pair{&in.gate, "gate"}, {&in.scale, "scale"}, {&in.shift, "shift"}}) {
    if (tensor == &in.gate && !in.gate.defined()) continue;
    if (!tensor->defined() || (tensor->sizes() != at::IntArrayRef(flat) && tensor->sizes() != at::IntArrayRef(row)))
      fail(kModulatedEntry, ": ", name, " has shape ", tensor->defined() ? c10::str(tensor->sizes()) : "none",
           ", expected ", c10::str(at::IntArrayRef(row)));
    if (tensor->scalar_type() != in.shift.scalar_type())
      fail(kModulatedEntry, ": ", name, " has another dtype than shift");
  }
}

}  // namespace

std::pair<at::Tensor, at::Tensor> modulated_norm(const ModulatedNormInputs& in, double eps,
                                                 std::optional<at::ScalarType> dtype) {
  expect_inputs(in);
  at::ScalarType type = in.x.scalar_type();
  if (const at::DeviceType device = in.x.device().type(); autocast_on(device) && type != at::kDouble)
    type = at::autocast::get_lower_precision_fp_from_device_type(device);
  if (dtype) type = *dtype;
  if (kernels_take(in, type)) {
    const torch::autograd::variable_list both =
        ModulatedNormFunction::apply(in.x, maybe(in.branch), maybe(in.gate), in.scale, in.shift, eps, type);
    return in.branch.defined() ? std::pair{both[0], both[1]} : std::pair{in.x, both[0]};
  }
  at::Tensor sum = in.x;
  if (in.branch.defined()) sum = at::addcmul(sum, wide_row(in.gate), in.branch.to(sum.scalar_type()));
  const at::Tensor unit = at::layer_norm(sum, {sum.size(-1)}, {}, {}, eps);
  const at::Tensor y = at::addcmul(wide_row(in.shift), unit, 1 + wide_row(in.scale));
  return {sum, dtype ? y.to(*dtype) : y};
}

}  // namespace mhla::ops
