// RMSNorm, feature map and rotary positions of q and k: one pass each on a GPU without gradients
// (kernels/norm/norm_rope.h), else norm and rope one after the other.
#include "mhla/core/error.h"
#include "mhla/kernels/norm/norm_rope.h"
#include "mhla/ops/attention_op.h"

namespace mhla::ops {
namespace {

constexpr const char* kNormRopeEntry = "norm_rope";

// Undefined: the kernel does not take it.
at::Tensor in_one_pass(const at::Tensor& x, const at::Tensor& weight, const NormRopeInputs& in, const RopeTable& table,
                       FeatureMap map) {
  if (at::GradMode::is_enabled() || !x.is_cuda() || x.numel() == 0 || table.halves || table.cos.dim() != 2) return {};
  at::ScalarType type = x.scalar_type();
  if (autocast_on(at::kCUDA) && type == at::kFloat)
    type = at::autocast::get_lower_precision_fp_from_device_type(at::kCUDA);
  if (!is_kernel_dtype(type)) return {};
  const at::Tensor rows = x.contiguous().view({-1, x.size(-1)}), scale = weight.contiguous();
  const at::Tensor cos = table.cos.contiguous(), sin = table.sin.contiguous();
  const at::Tensor out = at::empty({x.size(0), x.size(1), in.heads, x.size(2) / in.heads}, x.options().dtype(type));
  NormRopeParams p;
  p.x = view_of(rows, kNormRopeEntry, "x"), p.weight = view_of(scale, kNormRopeEntry, "weight");
  p.maybe_cos = view_of(cos, kNormRopeEntry, "cos"), p.maybe_sin = view_of(sin, kNormRopeEntry, "sin");
  p.head = x.size(2) / in.heads, p.feature_map = map, p.eps = in.eps;
  const View to = output_view(out.view(rows.sizes()), kNormRopeEntry, "out");
  if (!norm_rope_fit(p, to.dtype).empty()) return {};
  RunOptions run;
  run.stream = current_stream(x);
  norm_rope(p, to, run);
  return out;
}

}  // namespace

bool norm_silu_into(const at::Tensor& out, const at::Tensor& x, const at::Tensor& weight, double eps) {
  constexpr const char* kEntry = "norm_silu";
  if (at::GradMode::is_enabled() || !x.is_cuda() || x.numel() == 0 || !x.is_contiguous() || !out.is_contiguous())
    return false;
  const at::Tensor rows = x.view({-1, x.size(-1)}), to = out.view({-1, x.size(-1)}), scale = weight.contiguous();
  NormRopeParams p;
  p.x = view_of(rows, kEntry, "x"), p.weight = view_of(scale, kEntry, "weight"), p.eps = eps, p.silu = true;
  const View result = output_view(to, kEntry, "out");
  if (!norm_rope_fit(p, result.dtype).empty()) return false;
  RunOptions run;
  run.stream = current_stream(x);
  norm_rope(p, result, run);
  return true;
}

std::pair<at::Tensor, at::Tensor> norm_rope(const NormRopeInputs& in, const RopeTable& table, FeatureMap map) {
  for (const auto& [x, name] : {std::pair{&in.q, "q"}, std::pair{&in.k, "k"}}) {
    if (x->dim() != 3 || in.heads < 1 || x->size(2) % in.heads != 0)
      fail(kNormRopeEntry, ": ", name, " has shape ", c10::str(x->sizes()), ", expected [B, N, a multiple of ",
           in.heads, " heads]");
  }
  at::Tensor q = in_one_pass(in.q, in.q_weight, in, table, map);
  if (q.defined()) {
    at::Tensor k = in_one_pass(in.k, in.k_weight, in, table, map);
    if (k.defined()) return {q, k};
  }
  const auto normed = [&](const at::Tensor& x, const at::Tensor& weight) {
    NormOptions o;
    o.eps = in.eps;
    return norm(x, weight, o).unflatten(-1, {in.heads, -1}).contiguous();
  };
  return rope(normed(in.q, in.q_weight), normed(in.k, in.k_weight), table, map);
}

}  // namespace mhla::ops
