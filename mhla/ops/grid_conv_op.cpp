// A depthwise convolution over a grid of tokens with what it joins (kernels/grid_conv) and its gradient. What the
// kernels do not take (the CPU, f64, three axes, other kernel sizes) is computed with LibTorch's operators and
// differentiated by them.
#include "mhla/core/error.h"
#include "mhla/kernels/grid_conv/grid_conv.h"
#include "mhla/ops/attention_op.h"

namespace mhla::ops {
namespace {

constexpr const char* kGridConvEntry = "grid_conv";

DType kernel_dtype(at::ScalarType t) {
  return t == at::kBFloat16 ? DType::kBF16 : t == at::kHalf ? DType::kF16 : t == at::kFloat ? DType::kF32 : DType::kF64;
}

// Channels next to each other, tokens evenly apart and four channels aligned: as the kernels read v.
at::Tensor read_tokens(const at::Tensor& x) {
  const bool aligned = x.stride(2) == 1 && x.stride(1) % 4 == 0 && x.stride(0) % 4 == 0 && x.storage_offset() % 4 == 0;
  return aligned ? x : x.contiguous();
}

struct GridTensors {  // they outlive the call
  at::Tensor v, weight, bias, base, gate;
  GridConvParams params;
  GridTensors(const GridConvInputs& in, const std::vector<std::int64_t>& grid)
      : v(read_tokens(in.v)),
        weight(in.weight.flatten(1).t().to(at::kFloat).contiguous()),  // [taps, C]
        bias(in.bias.to(at::kFloat).contiguous()) {
    if (in.base.defined()) base = in.base.contiguous();
    if (in.gate.defined()) gate = in.gate.contiguous();
    const auto view = [](const at::Tensor& t, const char* name) {
      return t.defined() ? view_of(t, kGridConvEntry, name) : ConstView();
    };
    params.v = view(v, "v"), params.weight = view(weight, "weight"), params.maybe_bias = view(bias, "bias");
    params.maybe_base = view(base, "base"), params.maybe_gate = view(gate, "gate");
    params.rows = grid[0], params.columns = grid[1], params.kernel = in.weight.size(-1);
  }
};

bool kernels_take(const GridConvInputs& in, const std::vector<std::int64_t>& grid) {
  if (!in.v.is_cuda() || in.v.dim() != 3 || grid.size() != 2 || in.v.numel() == 0) return false;
  for (const at::Tensor* t : {&in.base, &in.gate}) {
    if (t->defined() && t->scalar_type() != in.v.scalar_type()) return false;
  }
  if (kernel_dtype(in.weight.scalar_type()) == DType::kF64 || in.bias.scalar_type() != in.weight.scalar_type())
    return false;
  GridConvParams p;
  p.v = ConstView(nullptr, kernel_dtype(in.v.scalar_type()), {in.v.size(0), in.v.size(1), in.v.size(2)});
  p.v.device = static_cast<int>(in.v.get_device());
  p.rows = grid[0], p.columns = grid[1], p.kernel = in.weight.size(-1);
  return grid_conv_fit(p).empty();
}

struct GridConvFunction : torch::autograd::Function<GridConvFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& v, const at::Tensor& weight,
                            const at::Tensor& bias, const Optional<at::Tensor>& maybe_base,
                            const Optional<at::Tensor>& maybe_gate, const std::vector<std::int64_t>& grid) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const at::Tensor base = value_or_undefined(maybe_base), gate = value_or_undefined(maybe_gate);
    const GridTensors t({v, weight, bias, base, gate}, grid);
    const at::Tensor out = at::empty(v.sizes(), v.options());
    RunOptions run;
    run.stream = current_stream(v);
    mhla::grid_conv(t.params, output_view(out, kGridConvEntry, "out"), run);
    // Without a gate the backward pass needs no base.
    context->save_for_backward({t.v, weight, bias, gate.defined() ? t.base : at::Tensor(), t.gate});
    context->saved_data["grid"] = grid, context->saved_data["base"] = base.defined();
    return out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& given) {
    if (at::GradMode::is_enabled())
      fail(kGridConvEntry, ": second derivatives are not there on a GPU, expected gradients without create_graph");
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const at::Tensor &v = saved[0], &weight = saved[1], &bias = saved[2], &gate = saved[4];
    const GridTensors t({v, weight, bias, saved[3], gate}, context->saved_data["grid"].toIntVector());
    const at::Tensor dout = given[0].contiguous(), dv = at::empty(v.sizes(), v.options());
    const at::Tensor dweight = at::empty(t.weight.sizes(), t.weight.options());
    const at::Tensor dbias = at::empty(bias.sizes(), bias.options().dtype(at::kFloat));
    at::Tensor dbase = context->saved_data["base"].toBool() ? dout : at::Tensor(), dgate;
    GridConvGrads grads;
    grads.dout = view_of(dout, kGridConvEntry, "dout"), grads.dv = output_view(dv, kGridConvEntry, "dv");
    grads.dweight = output_view(dweight, kGridConvEntry, "dweight");
    grads.dbias = output_view(dbias, kGridConvEntry, "dbias");
    if (gate.defined()) {
      dbase = at::empty_like(dout), dgate = at::empty_like(dout);
      grads.maybe_dbase = output_view(dbase, kGridConvEntry, "dbase");
      grads.maybe_dgate = output_view(dgate, kGridConvEntry, "dgate");
    }
    RunOptions run;
    run.stream = current_stream(v);
    const at::Tensor memory = device_workspace(v, grid_conv_workspace(t.params));
    run.workspace = bytes_of(memory);
    grid_conv_backward(t.params, grads, run);
    return {dv,
            dweight.t().to(weight.scalar_type()).reshape(weight.sizes()),
            dbias.to(bias.scalar_type()),
            dbase,
            dgate,
            at::Tensor()};
  }
};

at::Tensor plain_grid_conv(const GridConvInputs& in, const std::vector<std::int64_t>& grid) {
  const at::Tensor raster = in.v.transpose(1, 2).unflatten(-1, grid);  // [B, C, grid]
  const std::vector<std::int64_t> once(grid.size(), 1), padding(grid.size(), in.weight.size(-1) / 2);
  const std::int64_t channels = in.v.size(-1);
  const at::Tensor conv = grid.size() == 2 ? at::conv2d(raster, in.weight, in.bias, once, padding, once, channels)
                                           : at::conv3d(raster, in.weight, in.bias, once, padding, once, channels);
  const at::Tensor local = conv.flatten(2).transpose(1, 2);
  if (!in.base.defined()) return local;
  return (in.gate.defined() ? in.base * at::silu(in.gate) : in.base) + local;
}

}  // namespace

at::Tensor grid_conv(const GridConvInputs& inputs, const std::vector<std::int64_t>& grid) {
  GridConvInputs in = inputs;
  if (in.gate.defined() && !in.base.defined()) fail(kGridConvEntry, ": a gate is given without base");
  if (in.v.is_cuda() && autocast_on(at::kCUDA) && in.v.scalar_type() != at::kDouble) {
    const at::ScalarType type = at::autocast::get_lower_precision_fp_from_device_type(at::kCUDA);
    for (at::Tensor* t : {&in.v, &in.base, &in.gate}) {
      if (t->defined()) *t = t->to(type);
    }
  }
  if (kernels_take(in, grid))
    return GridConvFunction::apply(in.v, in.weight, in.bias, maybe(in.base), maybe(in.gate), grid);
  return plain_grid_conv(in, grid);
}

}  // namespace mhla::ops
