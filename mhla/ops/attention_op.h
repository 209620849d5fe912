// What the two forms share on their way through PyTorch's dispatcher. A Form brings its options, its schema and its two
// kernels; from it come the functions behind the dispatch keys:
//
// clang-format off
//   Autocast   casts q, k, v, q_den and k_den to autocast's dtype, never mix
//   Autograd   saves the inputs and what the kernels keep; backward computes the gradients that are asked for, and is
//              itself not differentiable
//   CPU, CUDA  checks, allocates, calls the kernel
//   Meta       the same checks on shapes alone
// clang-format on
//
// Backward returns a list of the gradients asked for, in the order q, k, v, mix, q_den, k_den.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "mhla/core/error.h"
#include "mhla/core/threads.h"
#include "mhla/ops/ops.h"
#include "mhla/ops/tensor_view.h"

namespace mhla::ops {

inline constexpr std::size_t kGradients = 6;
using Wanted = std::array<bool, kGradients>;
inline constexpr const char* kGradientNames[kGradients] = {"dq", "dk", "dv", "dmix", "dq_den", "dk_den"};

using Ints = at::IntArrayRef;

// A layout as the schemas spell it: block_size (1D), or grid and blocks (2D, 3D).
inline Layout layout_of(std::int64_t block_size, Ints grid, Ints blocks, const char* entry) {
  if (grid.empty() && blocks.empty()) {
    if (block_size == 0) fail(entry, ": no layout is given, expected block_size, or grid and blocks");
    return Layout::line(block_size);
  }
  if (block_size != 0)
    fail(entry, ": block_size is ", block_size, " beside grid and blocks, expected one or the other");
  if (grid.size() != blocks.size() || (grid.size() != 2 && grid.size() != 3)) {
    fail(entry, ": grid has ", grid.size(), " axes and blocks has ", blocks.size(), ", expected 2 or 3 of each");
  }
  if (grid.size() == 2) return Layout::grid2d(grid[0], grid[1], blocks[0], blocks[1]);
  return Layout::grid3d({grid[0], grid[1], grid[2]}, {blocks[0], blocks[1], blocks[2]});
}

inline at::Tensor value_or_undefined(const Optional<at::Tensor>& x) { return x.has_value() ? *x : at::Tensor(); }
inline Optional<at::Tensor> maybe(const at::Tensor& x) { return x.defined() ? Optional<at::Tensor>(x) : kNone; }

// The six differentiable inputs in the order of the gradients.
inline std::array<const at::Tensor*, kGradients> differentiable(const AttentionInputs& in) {
  return {&in.q, &in.k, &in.v, &in.mix, &in.q_den, &in.k_den};
}

// mix as the kernels want it: a 16-bit one widened, one that is expanded over heads in memory of its own, any other as
// it is.
inline at::Tensor wide_mix(const at::Tensor& mix) {
  if (!mix.defined()) return mix;
  if (mix.scalar_type() == at::kBFloat16 || mix.scalar_type() == at::kHalf) return mix.to(at::kFloat);
  const bool expanded = !symbolic(mix) && mix.dim() == 3 && mix.size(0) > 1 && mix.stride(0) == 0;
  return expanded ? mix.contiguous() : mix;
}

// Scratch memory on the device comes from PyTorch's allocator, in the order of its current stream.
inline at::Tensor device_workspace(const at::Tensor& q, std::int64_t bytes) {
  return at::empty({bytes}, q.options().dtype(at::kByte));
}
inline std::span<std::byte> bytes_of(const at::Tensor& memory) {
  return {static_cast<std::byte*>(memory.data_ptr()), static_cast<std::size_t>(memory.numel())};
}

template <class Form>
using Params = typename Form::Params;
template <class Form>
using Options = typename Form::Options;

// Views of the inputs. `mix` and `cu` are the widened mix and cu_seqlens in host memory: both outlive the call.
template <class Form, class ToView>
Params<Form> params_of(const AttentionInputs& in, const at::Tensor& mix, const at::Tensor& cu,
                       const Options<Form>& options, const ToView& view) {
  Params<Form> params = Form::params(options);
  params.q = view(in.q, "q"), params.k = view(in.k, "k"), params.v = view(in.v, "v");
  params.mix = view(mix, "mix");
  params.maybe_q_den = view(in.q_den, "q_den"), params.maybe_k_den = view(in.k_den, "k_den");
  params.maybe_cu_seqlens = view(cu, "cu_seqlens");
  return params;
}

// The shape of out as far as q and v tell; whatever is wrong with them the kernel's checks say better.
inline std::vector<c10::SymInt> out_sizes(const AttentionInputs& in) {
  if (in.q.dim() != 4 || in.v.dim() != 4) return {0};
  return {in.q.sym_size(0), in.q.sym_size(1), in.q.sym_size(2), in.v.sym_size(3)};
}

// `maybe_kept` gets what the kernels keep for backward, and stays undefined where that is nothing.
template <class Form>
at::Tensor forward_keeping(const AttentionInputs& in, const Options<Form>& options, at::Tensor* maybe_kept) {
  const auto view = [](const at::Tensor& x, const char* name) { return view_of(x, Form::kForwardEntry, name); };
  const at::Tensor mix = wide_mix(in.mix), cu = on_host(in.cu_seqlens, Form::kForwardEntry);
  const Params<Form> params = params_of<Form>(in, mix, cu, options, view);
  const at::Tensor out = in.q.dim() == 4 && in.v.dim() == 4
                             ? at::empty({in.q.size(0), in.q.size(1), in.q.size(2), in.v.size(3)}, in.q.options())
                             : at::empty({0}, in.q.options());
  const View out_view = output_view(out, Form::kForwardEntry, "out");
  RunOptions run;
  at::Tensor memory;
  if (in.q.is_cuda()) {
    run.stream = current_stream(in.q);
    const std::int64_t kept = maybe_kept == nullptr ? 0 : Form::kept(params, out_view, run);
    if (kept > 0) *maybe_kept = device_workspace(in.q, kept), run.kept = bytes_of(*maybe_kept);
    memory = device_workspace(in.q, Form::forward_workspace(params, out_view, run));
    run.workspace = bytes_of(memory);
  }
  Form::forward(params, out_view, run);
  return out;
}

template <class Form>
at::Tensor forward_kernel(const AttentionInputs& in, const Options<Form>& options) {
  return forward_keeping<Form>(in, options, nullptr);
}

// The gradients that are wanted, in their order, into tensors of the inputs' sizes whose rows are dense. `maybe_kept`:
// what forward_keeping() left, or undefined.
template <class Form>
void backward_into(const at::Tensor& dout, const AttentionInputs& in, const Options<Form>& options,
                   const Wanted& wanted, const std::vector<at::Tensor>& gradients, const at::Tensor& maybe_kept) {
  const auto view = [](const at::Tensor& x, const char* name) { return view_of(x, Form::kBackwardEntry, name); };
  const at::Tensor cu = on_host(in.cu_seqlens, Form::kBackwardEntry);
  const Params<Form> params = params_of<Form>(in, in.mix, cu, options, view);
  const at::Tensor dense_dout = with_dense_rows(dout);
  typename Form::Grads grads;
  grads.dout = view(dense_dout, "dout");
  const std::array<View*, kGradients> views = {&grads.dq,   &grads.dk,           &grads.dv,
                                               &grads.dmix, &grads.maybe_dq_den, &grads.maybe_dk_den};
  std::size_t next = 0;
  for (std::size_t i = 0; i < kGradients; ++i) {
    if (wanted[i]) *views[i] = output_view(gradients[next++], Form::kBackwardEntry, kGradientNames[i]);
  }
  RunOptions run;
  at::Tensor memory;
  if (in.q.is_cuda()) {
    run.stream = current_stream(in.q);
    if (maybe_kept.defined()) run.kept = bytes_of(maybe_kept);
    memory = device_workspace(in.q, Form::backward_workspace(params, grads, run));
    run.workspace = bytes_of(memory);
  }
  Form::backward(params, grads, run);
}

template <class Form>
std::vector<at::Tensor> backward_of_kept(const at::Tensor& dout, const AttentionInputs& given,
                                         const Options<Form>& options, const Wanted& wanted,
                                         const at::Tensor& maybe_kept) {
  AttentionInputs in = given;
  in.mix = wide_mix(given.mix);  // dmix comes as wide as the kernels' mix
  const auto like = differentiable(in);
  std::vector<at::Tensor> gradients;
  for (std::size_t i = 0; i < kGradients; ++i) {
    if (!wanted[i]) continue;
    if (!like[i]->defined())
      fail(Form::kBackwardEntry, ": ", kGradientNames[i], " is wanted, but its input is not given");
    gradients.push_back(at::empty(like[i]->sizes(), like[i]->options()));
  }
  backward_into<Form>(dout, in, options, wanted, gradients, maybe_kept);
  if (wanted[3]) {
    at::Tensor& dmix = gradients[static_cast<std::size_t>(wanted[0]) + wanted[1] + wanted[2]];
    dmix = dmix.to(given.mix.scalar_type());
  }
  return gradients;
}

template <class Form>
std::vector<at::Tensor> backward_kernel(const at::Tensor& dout, const AttentionInputs& in, const Options<Form>& options,
                                        const Wanted& wanted) {
  return backward_of_kept<Form>(dout, in, options, wanted, at::Tensor());
}

// A tensor without memory among others would bring them here, and its answer would have no numbers.
inline void expect_device_of(const at::Tensor& first,
                             std::initializer_list<std::pair<const at::Tensor*, const char*>> others, const char* entry,
                             const char* first_name) {
  for (const auto& [x, name] : others) {
    if (x->defined() && x->device() != first.device())
      fail(entry, ": ", name, " is on ", x->device().str(), ", expected ", first.device().str(), " like ", first_name);
  }
}
inline void expect_one_device(const AttentionInputs& in, const char* entry, const at::Tensor& dout = {}) {
  expect_device_of(
      in.q, {{&in.k, "k"}, {&in.v, "v"}, {&in.mix, "mix"}, {&in.q_den, "q_den"}, {&in.k_den, "k_den"}, {&dout, "dout"}},
      entry, "q");
  if (in.cu_seqlens.defined() && !in.cu_seqlens.is_cpu())
    expect_device_of(in.q, {{&in.cu_seqlens, "cu_seqlens"}}, entry, "q");
}

// Shapes alone. Sizes that are symbols, and packed sequences whose lengths nobody knows yet, are checked when the
// numbers are there.
template <class Form>
at::Tensor forward_meta(const AttentionInputs& in, const Options<Form>& options) {
  expect_one_device(in, Form::kForwardEntry);
  const at::Tensor out = in.q.new_empty_symint(out_sizes(in));
  bool known = !in.cu_seqlens.defined();
  for (const at::Tensor* x : differentiable(in)) known = known && !symbolic(*x);
  if (known) {
    const auto view = [](const at::Tensor& x, const char* name) { return shape_view(x, Form::kForwardEntry, name); };
    InlineExecutor nobody;
    RunOptions run;
    run.maybe_executor = &nobody;
    const Params<Form> params = params_of<Form>(in, wide_mix(in.mix), at::Tensor(), options, view);
    (void)Form::forward_workspace(params, shape_view(out, Form::kForwardEntry, "out"), run);
  }
  return out;
}

template <class Form>
std::vector<at::Tensor> backward_meta(const at::Tensor& dout, const AttentionInputs& in,
                                      const Options<Form>& /*options*/, const Wanted& wanted) {
  expect_one_device(in, Form::kBackwardEntry, dout);
  std::vector<at::Tensor> gradients;
  const auto like = differentiable(in);
  for (std::size_t i = 0; i < kGradients; ++i) {
    if (wanted[i]) gradients.push_back(like[i]->new_empty_symint(like[i]->sym_sizes()));
  }
  return gradients;
}

// ---- Autocast

inline AttentionInputs autocast_inputs(const AttentionInputs& in) {
  const c10::DeviceType device = in.q.device().type();
  const at::ScalarType to = at::autocast::get_lower_precision_fp_from_device_type(device);
  AttentionInputs cast = in;
  for (at::Tensor* x : {&cast.q, &cast.k, &cast.v, &cast.q_den, &cast.k_den}) {
    if (x->defined()) *x = at::autocast::cached_cast(to, *x, device);
  }
  return cast;
}

template <class Form>
at::Tensor forward_autocast(const AttentionInputs& in, const Options<Form>& options) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  return Form::call(autocast_inputs(in), options);
}

// ---- Autograd

template <class Form>
struct SavedOptions : torch::CustomClassHolder {
  explicit SavedOptions(const Options<Form>& given) : options(given) {}
  Options<Form> options;
};

// Whether a call below autograd goes straight to the kernels, and not first to somebody who records or rewrites it: a
// compiler, a trace, a dispatch mode.
inline bool straight_to_kernels(const AttentionInputs& in, const at::Tensor& maybe_dout = {}) {
  const c10::impl::LocalDispatchKeySet here = c10::impl::tls_local_dispatch_key_set();
  const auto straight = [&](const at::Tensor& x) {
    if (!x.defined()) return true;
    const c10::DispatchKeySet keys = (x.key_set() | here.included_) - here.excluded_ - c10::autocast_dispatch_keyset -
                                     c10::DispatchKeySet(c10::DispatchKey::BackendSelect);
    const c10::DispatchKey first = keys.highestPriorityTypeId();
    return first == c10::DispatchKey::CPU || first == c10::DispatchKey::CUDA;
  };
  for (const at::Tensor* x : differentiable(in))
    if (!straight(*x)) return false;
  return straight(in.cu_seqlens) && straight(maybe_dout);
}

template <class Form>
struct Differentiable : torch::autograd::Function<Differentiable<Form>> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const at::Tensor& mix, const Optional<at::Tensor>& q_den,
                            const Optional<at::Tensor>& k_den, const Optional<at::Tensor>& cu_seqlens,
                            const Options<Form>& options) {
    const at::AutoDispatchBelowADInplaceOrView below;
    // mix is widened once for both passes; autograd casts its gradient back.
    const AttentionInputs in{
        q, k, v, wide_mix(mix), value_or_undefined(q_den), value_or_undefined(k_den), value_or_undefined(cu_seqlens)};
    at::Tensor out, kept;
    if (keeps_summaries() && straight_to_kernels(in)) {
      RECORD_USER_SCOPE(Form::kOp);
      out = forward_keeping<Form>(in, options, &kept);
    } else {
      out = Form::call(in, options);
    }
    context->save_for_backward({in.q, in.k, in.v, in.mix, in.q_den, in.k_den, in.cu_seqlens, kept});
    context->saved_data["options"] = c10::IValue::make_capsule(c10::make_intrusive<SavedOptions<Form>>(options));
    return out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& dout) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const AttentionInputs in{saved[0], saved[1], saved[2], saved[3], saved[4], saved[5], saved[6]};
    const auto options =
        c10::static_intrusive_pointer_cast<SavedOptions<Form>>(context->saved_data["options"].toCapsule());
    const auto inputs = differentiable(in);
    Wanted wanted{};
    std::size_t edge = 0;  // inputs that are not given have none
    for (std::size_t i = 0; i < kGradients; ++i) {
      if (inputs[i]->defined()) wanted[i] = context->needs_input_grad(edge++);
    }
    const std::vector<at::Tensor> gradients = gradients_of(dout[0], in, options->options, wanted, saved[7]);
    torch::autograd::variable_list all(8);  // one per argument of forward
    std::size_t next = 0;
    for (std::size_t i = 0; i < kGradients; ++i) {
      if (wanted[i]) all[i] = gradients[next++];
    }
    return all;
  }

 private:
  static std::vector<at::Tensor> gradients_of(const at::Tensor& dout, const AttentionInputs& in,
                                              const Options<Form>& options, const Wanted& wanted,
                                              const at::Tensor& maybe_kept) {
    if (maybe_kept.defined() && !at::GradMode::is_enabled()) {
      const at::AutoDispatchBelowADInplaceOrView below;
      if (straight_to_kernels(in, dout)) {
        RECORD_USER_SCOPE(Form::kBackwardOp);
        return backward_of_kept<Form>(dout, in, options, wanted, maybe_kept);
      }
    }
    return Form::call_backward(dout, in, options, wanted);
  }
};

[[noreturn]] inline void refuse_second_derivative(const char* entry) {
  fail(entry,
       ": the gradient of a gradient is not implemented; call backward() without create_graph=True, or detach the "
       "gradients first");
}

template <class Form>
struct NoSecondDerivative : torch::autograd::Function<NoSecondDerivative<Form>> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext*, const at::Tensor& dout,
                                                const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                const at::Tensor& mix, const Optional<at::Tensor>& q_den,
                                                const Optional<at::Tensor>& k_den, const AttentionInputs& in,
                                                const Options<Form>& options, const Wanted& wanted) {
    const at::AutoDispatchBelowADInplaceOrView below;
    (void)q, (void)k, (void)v, (void)mix, (void)q_den, (void)k_den;  // they are there for autograd to see
    return Form::call_backward(dout, in, options, wanted);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&) {
    refuse_second_derivative(Form::kBackwardEntry);
  }
};

inline bool wants_gradient(const at::Tensor& x) {
  return x.defined() && (x.requires_grad() || x._fw_grad(/*level=*/0).defined());
}

template <class Tensors>
void refuse_forward_mode(const Tensors& inputs, const char* entry) {
  for (const at::Tensor* x : inputs) {
    if (x->defined() && x->_fw_grad(/*level=*/0).defined())
      fail(entry, ": forward-mode derivatives are not implemented; use backward()");
  }
}

template <class Form>
at::Tensor forward_autograd(const AttentionInputs& in, const Options<Form>& options) {
  refuse_forward_mode(differentiable(in), Form::kForwardEntry);
  bool differentiate = false;
  for (const at::Tensor* x : differentiable(in)) differentiate = differentiate || wants_gradient(*x);
  if (!differentiate || !at::GradMode::is_enabled()) {
    const at::AutoDispatchBelowADInplaceOrView below;
    return Form::call(in, options);
  }
  return Differentiable<Form>::apply(in.q, in.k, in.v, in.mix, maybe(in.q_den), maybe(in.k_den),
                                     maybe(on_host(in.cu_seqlens, Form::kForwardEntry)), options);
}

template <class Form>
std::vector<at::Tensor> backward_autograd(const at::Tensor& dout, const AttentionInputs& in,
                                          const Options<Form>& options, const Wanted& wanted) {
  bool differentiate = wants_gradient(dout);
  for (const at::Tensor* x : differentiable(in)) differentiate = differentiate || wants_gradient(*x);
  if (!differentiate || !at::GradMode::is_enabled()) {
    const at::AutoDispatchBelowADInplaceOrView below;
    return Form::call_backward(dout, in, options, wanted);
  }
  return NoSecondDerivative<Form>::apply(dout, in.q, in.k, in.v, in.mix, maybe(in.q_den), maybe(in.k_den), in, options,
                                         wanted);
}

}  // namespace mhla::ops
