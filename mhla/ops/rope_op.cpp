// torch.ops.mhla.rope: the feature map and rotary positions behind it, of q and k at once (kernels/rope), with its
// gradient. f64 on a GPU, and gradients of gradients, are computed with LibTorch's operators.
#include <tuple>

#include "mhla/core/cuda.h"
#include "mhla/core/error.h"
#include "mhla/kernels/rope/rope.h"
#include "mhla/ops/attention_op.h"
#include "mhla/ops/feature_map.h"

namespace mhla::ops {
namespace {

using Two = std::tuple<at::Tensor, at::Tensor>;

bool kernels_take(const at::Tensor& q) {
  return q.is_cpu() || (cuda_built() && q.is_cuda() && q.scalar_type() != at::kDouble);
}

// ---- With LibTorch's operators

// x [B, N, H, D] in the dtype of the table.
at::Tensor plain_turn(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool halves) {
  const at::Tensor c = cos.unsqueeze(-2), s = sin.unsqueeze(-2);
  if (halves) {
    const std::vector<at::Tensor> parts = x.chunk(2, -1);
    return at::cat({parts[0] * c - parts[1] * s, parts[0] * s + parts[1] * c}, -1);
  }
  const std::vector<at::Tensor> parts = x.unflatten(-1, {-1, 2}).unbind(-1);
  return at::stack({parts[0] * c - parts[1] * s, parts[0] * s + parts[1] * c}, -1).flatten(-2);
}

at::Tensor plain_backward(const at::Tensor& dout, const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                          bool halves, FeatureMap map) {
  const at::Tensor turned = plain_turn(dout.to(cos.scalar_type()), cos, -sin, halves);
  return (x.defined() ? through_features(x.to(cos.scalar_type()), map, turned) : turned).to(dout.scalar_type());
}

// ---- Kernels

RunOptions on_stream_of(const at::Tensor& q) {
  RunOptions run;
  if (q.is_cuda()) run.stream = current_stream(q);
  return run;
}

template <class ToView>
RopeParams rope_params(const at::Tensor& q, const at::Tensor& k, const RopeTable& table, FeatureMap map,
                       const ToView& view) {
  RopeParams p;
  p.q = view(q, "q"), p.maybe_k = view(k, "k"), p.cos = view(table.cos, "cos"), p.sin = view(table.sin, "sin");
  p.halves = table.halves, p.feature_map = map;
  return p;
}

Two rope_kernel(const at::Tensor& q, const at::Tensor& k, const at::Tensor& cos, const at::Tensor& sin, bool halves,
                Text feature_map) {
  constexpr const char* kEntry = "rope";
  const FeatureMap map = parse_feature_map(view_of(feature_map));
  const at::Tensor dense_q = with_dense_rows(q), dense_k = with_dense_rows(k);
  const RopeParams params = rope_params(dense_q, dense_k, {cos, sin, halves}, map,
                                        [](const at::Tensor& x, const char* name) { return view_of(x, kEntry, name); });
  check_rope(params);
  if (!kernels_take(q)) {
    const auto turned = [&](const at::Tensor& x) {
      return plain_turn(apply_features(x.to(cos.scalar_type()), map), cos, sin, halves).to(x.scalar_type());
    };
    return {turned(q), turned(k)};
  }
  const at::Tensor q_out = at::empty(q.sizes(), q.options()), k_out = at::empty(k.sizes(), k.options());
  rope(params, output_view(q_out, kEntry, "q_out"), output_view(k_out, kEntry, "k_out"), on_stream_of(q));
  return {q_out, k_out};
}

// Shapes alone; sizes that are symbols are checked when the numbers are there.
Two rope_meta(const at::Tensor& q, const at::Tensor& k, const at::Tensor& cos, const at::Tensor& sin, bool halves,
              Text feature_map) {
  const FeatureMap map = parse_feature_map(view_of(feature_map));
  expect_device_of(q, {{&k, "k"}, {&cos, "cos"}, {&sin, "sin"}}, "rope", "q");
  if (!symbolic(q) && !symbolic(k) && !symbolic(cos) && !symbolic(sin))
    check_rope(rope_params(q, k, {cos, sin, halves}, map, [](const at::Tensor& x, const char* name) {
      return shape_view(with_dense_rows(x), "rope", name);
    }));
  return {at::empty_symint(q.sym_sizes(), q.options()), at::empty_symint(k.sym_sizes(), k.options())};
}

// q and k with every map but the identity, whose slope they do not change.
template <bool kPlain>
Two rope_backward_kernel(const at::Tensor& dq_out, const at::Tensor& dk_out, const Optional<at::Tensor>& maybe_q,
                         const Optional<at::Tensor>& maybe_k, const at::Tensor& cos, const at::Tensor& sin, bool halves,
                         Text feature_map) {
  constexpr const char* kEntry = "rope_backward";
  const FeatureMap map = parse_feature_map(view_of(feature_map));
  const at::Tensor q = value_or_undefined(maybe_q), k = value_or_undefined(maybe_k);
  if (kPlain || !kernels_take(dq_out))
    return {plain_backward(dq_out, q, cos, sin, halves, map), plain_backward(dk_out, k, cos, sin, halves, map)};
  const auto dense = [](const at::Tensor& x) { return x.defined() ? with_dense_rows(x) : x; };
  const at::Tensor dense_q = dense(q), dense_k = dense(k), dense_dq = dense(dq_out), dense_dk = dense(dk_out);
  const at::Tensor dq = at::empty(dq_out.sizes(), dq_out.options()), dk = at::empty(dk_out.sizes(), dk_out.options());
  const auto view = [](const at::Tensor& x, const char* name) { return view_of(x, kEntry, name); };
  rope_backward(rope_params(dense_q, dense_k, {cos, sin, halves}, map, view),
                {view(dense_dq, "dq_out"), view(dense_dk, "dk_out"), output_view(dq, kEntry, "dq"),
                 output_view(dk, kEntry, "dk")},
                on_stream_of(dq_out));
  return {dq, dk};
}

Two rope_backward_meta(const at::Tensor& dq_out, const at::Tensor& dk_out, const Optional<at::Tensor>& maybe_q,
                       const Optional<at::Tensor>& maybe_k, const at::Tensor& cos, const at::Tensor& sin,
                       bool /*halves*/, Text /*feature_map*/) {
  const at::Tensor q = value_or_undefined(maybe_q), k = value_or_undefined(maybe_k);
  expect_device_of(dq_out, {{&dk_out, "dk_out"}, {&q, "q"}, {&k, "k"}, {&cos, "cos"}, {&sin, "sin"}}, "rope_backward",
                   "dq_out");
  return {at::empty_symint(dq_out.sym_sizes(), dq_out.options()),
          at::empty_symint(dk_out.sym_sizes(), dk_out.options())};
}

using Call = Two(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, bool, Text);
using BackwardCall = Two(const at::Tensor&, const at::Tensor&, const Optional<at::Tensor>&, const Optional<at::Tensor>&,
                         const at::Tensor&, const at::Tensor&, bool, Text);

const auto& rope_handle() {
  static const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow("mhla::rope", "").typed<Call>();
  return handle;
}
const auto& rope_backward_handle() {
  static const auto handle =
      c10::Dispatcher::singleton().findSchemaOrThrow("mhla::rope_backward", "").typed<BackwardCall>();
  return handle;
}

// ---- Autograd: keeps the table, and the inputs where their slope is looked up.

struct RopeFunction : torch::autograd::Function<RopeFunction> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context, const at::Tensor& q,
                                                const at::Tensor& k, const at::Tensor& cos, const at::Tensor& sin,
                                                bool halves, const std::string& feature_map) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const bool slopes = parse_feature_map(feature_map) != FeatureMap::kIdentity;
    context->save_for_backward({slopes ? q : at::Tensor(), slopes ? k : at::Tensor(), cos, sin});
    context->saved_data["halves"] = halves, context->saved_data["feature_map"] = feature_map;
    const auto [q_out, k_out] = rope_handle().call(q, k, cos, sin, halves, text_of(feature_map));
    return {q_out, k_out};
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& dout) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const std::string feature_map = context->saved_data["feature_map"].toStringRef();
    const auto [dq, dk] =
        rope_backward_handle().call(dout[0], dout[1], maybe(saved[0]), maybe(saved[1]), saved[2], saved[3],
                                    context->saved_data["halves"].toBool(), text_of(feature_map));
    return {dq, dk, {}, {}, {}, {}};  // one per argument of forward
  }
};

Two rope_autograd(const at::Tensor& q, const at::Tensor& k, const at::Tensor& cos, const at::Tensor& sin, bool halves,
                  Text feature_map) {
  refuse_forward_mode(std::array{&q, &k, &cos, &sin}, "rope");
  if (at::GradMode::is_enabled() && (wants_gradient(cos) || wants_gradient(sin)))
    fail("rope: ", wants_gradient(cos) ? "cos" : "sin", " wants a gradient, expected a table that does not");
  if (!at::GradMode::is_enabled() || (!wants_gradient(q) && !wants_gradient(k))) {
    const at::AutoDispatchBelowADInplaceOrView below;
    return rope_handle().call(q, k, cos, sin, halves, feature_map);
  }
  const torch::autograd::variable_list out =
      RopeFunction::apply(q, k, cos, sin, halves, std::string(view_of(feature_map)));
  return {out[0], out[1]};
}

Two rope_backward_autograd(const at::Tensor& dq_out, const at::Tensor& dk_out, const Optional<at::Tensor>& q,
                           const Optional<at::Tensor>& k, const at::Tensor& cos, const at::Tensor& sin, bool halves,
                           Text feature_map) {
  bool differentiate = false;
  for (const at::Tensor& t : {dq_out, dk_out, value_or_undefined(q), value_or_undefined(k)})
    differentiate = differentiate || wants_gradient(t);
  if (differentiate && at::GradMode::is_enabled())
    return rope_backward_kernel<true>(dq_out, dk_out, q, k, cos, sin, halves, feature_map);
  const at::AutoDispatchBelowADInplaceOrView below;
  return rope_backward_handle().call(dq_out, dk_out, q, k, cos, sin, halves, feature_map);
}

// As the attention behind it: q and k in autocast's dtype, never the table.
Two rope_autocast(const at::Tensor& q, const at::Tensor& k, const at::Tensor& cos, const at::Tensor& sin, bool halves,
                  Text feature_map) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const c10::DeviceType device = q.device().type();
  const at::ScalarType to = at::autocast::get_lower_precision_fp_from_device_type(device);
  return rope_handle().call(at::autocast::cached_cast(to, q, device), at::autocast::cached_cast(to, k, device), cos,
                            sin, halves, feature_map);
}

TORCH_LIBRARY_FRAGMENT(mhla, m) {
  m.def(
      "rope(Tensor q, Tensor k, Tensor cos, Tensor sin, bool halves, str feature_map=\"identity\") -> (Tensor, "
      "Tensor)");
  m.def(
      "rope_backward(Tensor dq_out, Tensor dk_out, Tensor? q, Tensor? k, Tensor cos, Tensor sin, bool halves, "
      "str feature_map) -> (Tensor, Tensor)");
}
template <class Library>
void implement_rope(Library& m) {
  m.impl("rope", rope_kernel);
  m.impl("rope_backward", rope_backward_kernel<false>);
}
TORCH_LIBRARY_IMPL(mhla, CPU, m) { implement_rope(m); }
TORCH_LIBRARY_IMPL(mhla, CUDA, m) { implement_rope(m); }
TORCH_LIBRARY_IMPL(mhla, Meta, m) {
  m.impl("rope", rope_meta);
  m.impl("rope_backward", rope_backward_meta);
}
TORCH_LIBRARY_IMPL(mhla, Autograd, m) {
  m.impl("rope", rope_autograd);
  m.impl("rope_backward", rope_backward_autograd);
}
TORCH_LIBRARY_IMPL(mhla, AutocastCPU, m) { m.impl("rope", rope_autocast); }
TORCH_LIBRARY_IMPL(mhla, Autocast, m) { m.impl("rope", rope_autocast); }

}  // namespace

std::pair<at::Tensor, at::Tensor> rope(const at::Tensor& q, const at::Tensor& k, const RopeTable& table,
                                       FeatureMap feature_map) {
  const auto [q_out, k_out] =
      rope_handle().call(q, k, table.cos, table.sin, table.halves, text_of(name_of(feature_map)));
  return {q_out, k_out};
}

}  // namespace mhla::ops
