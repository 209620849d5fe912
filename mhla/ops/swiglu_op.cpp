// silu(gate) up with its gradient (kernels/swiglu); what the kernels do not take is left to LibTorch's operators.
#include "mhla/core/cuda.h"
#include "mhla/core/error.h"
#include "mhla/kernels/swiglu/swiglu.h"
#include "mhla/ops/attention_op.h"

namespace mhla::ops {
namespace {

constexpr const char* kSwigluEntry = "swiglu";

struct SwigluFunction : torch::autograd::Function<SwigluFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& given_gate,
                            const at::Tensor& given_up) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const at::Tensor gate = given_gate.contiguous(), up = given_up.contiguous(), out = at::empty_like(gate);
    RunOptions run;
    run.stream = current_stream(gate);
    mhla::swiglu({view_of(gate, kSwigluEntry, "gate"), view_of(up, kSwigluEntry, "up")},
                 output_view(out, kSwigluEntry, "out"), run);
    context->save_for_backward({gate, up});
    return out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& given) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const at::Tensor &gate = saved[0], &up = saved[1];
    if (at::GradMode::is_enabled()) {  // create_graph: what has gradients itself
      const at::Tensor s = gate.sigmoid();
      return {given[0] * up * s * (1 + gate * (1 - s)), given[0] * gate * s};
    }
    const at::Tensor dout = given[0].contiguous(), dgate = at::empty_like(gate), dup = at::empty_like(up);
    RunOptions run;
    run.stream = current_stream(gate);
    swiglu_backward({view_of(gate, kSwigluEntry, "gate"), view_of(up, kSwigluEntry, "up")},
                    {view_of(dout, kSwigluEntry, "dout"), output_view(dgate, kSwigluEntry, "dgate"),
                     output_view(dup, kSwigluEntry, "dup")},
                    run);
    return {dgate, dup};
  }
};

bool kernels_take(const at::Tensor& gate, const at::Tensor& up) {
  const at::ScalarType type = gate.scalar_type();
  return (gate.is_cpu() || (gate.is_cuda() && cuda_built())) && up.device() == gate.device() &&
         up.scalar_type() == type && up.sizes() == gate.sizes() && gate.dim() > 0 && gate.dim() <= kMaxRank &&
         gate.numel() > 0 && (type == at::kFloat || type == at::kBFloat16 || type == at::kHalf);
}

}  // namespace

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  if (kernels_take(gate, up)) return SwigluFunction::apply(gate, up);
  return at::silu(gate) * up;
}

}  // namespace mhla::ops
