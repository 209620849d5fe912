// Global linear attention: one summary for all tokens, or its running sum in the causal form.
#include "apps/engine/rivals/variants.h"

namespace mhla::rivals {
namespace {

// [B, H, N, D], copied so that every head is contiguous.
at::Tensor by_head(const at::Tensor& x) { return x.transpose(1, 2).contiguous(); }

at::Tensor bidirectional(const RivalRequest& r, const Inputs& in, bool copied) {
  const auto arrange = [&](const at::Tensor& x) { return copied ? by_head(x) : x.transpose(1, 2); };
  const at::Tensor q = arrange(features(in.q)), k = arrange(features(repeat_heads(in.k, r.H)));
  const at::Tensor v = arrange(repeat_heads(in.v, r.H));
  const at::Tensor S = at::matmul(k.transpose(-1, -2), v);               // [B, H, D, E]
  const at::Tensor den = at::matmul(q, k.sum(2).unsqueeze(-1)) + r.eps;  // [B, H, N, 1]
  return (at::matmul(q, S) * r.scale / den).transpose(1, 2).contiguous();
}

at::Tensor bidirectional_einsum(const RivalRequest& r, const Inputs& in) {
  const at::Tensor q = features(in.q), k = features(repeat_heads(in.k, r.H)), v = repeat_heads(in.v, r.H);
  const at::Tensor S = at::einsum("bnhd,bnhe->bhde", {k, v});
  const at::Tensor den = at::einsum("bnhd,bhd->bnh", {q, k.sum(1)}).unsqueeze(-1) + r.eps;
  return at::einsum("bnhd,bhde->bnhe", {q, S}) * r.scale / den;
}

at::Tensor causal(const RivalRequest& r, const Blocks& blocks, const Inputs& in) {
  const at::Tensor q = blocks.split(features(in.q)), k = blocks.split(features(repeat_heads(in.k, r.H)));
  const at::Tensor v = blocks.split(repeat_heads(in.v, r.H));
  const at::Tensor S = at::matmul(k.transpose(-1, -2), v);  // [B, H, M, D, E]
  const at::Tensor prefix = S.cumsum(2) - S;
  const at::Tensor A = at::matmul(q, k.transpose(-1, -2)).tril();
  return blocks.merge((at::matmul(q, prefix) + at::matmul(A, v)) * r.scale);
}

}  // namespace

std::vector<Variant> linear_variants(const RivalRequest& request) {
  std::vector<Variant> variants;
  if (request.causal) {
    const Blocks blocks(request);
    variants.push_back({"chunks and a running sum", [=](const Inputs& in) { return causal(request, blocks, in); }});
    return variants;
  }
  variants.push_back({"heads copied apart", [=](const Inputs& in) { return bidirectional(request, in, true); }});
  variants.push_back({"strided heads", [=](const Inputs& in) { return bidirectional(request, in, false); }});
  variants.push_back({"einsum", [=](const Inputs& in) { return bidirectional_einsum(request, in); }});
  return variants;
}

}  // namespace mhla::rivals
