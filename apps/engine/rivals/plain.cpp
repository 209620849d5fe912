// MHLA by LibTorch operators, as a user without kernels would write it, in several layouts.
//   S = k~^T v per block,  S~ = mix S,  out = q~ S~ / (eps + q~ z~)
#include "apps/engine/rivals/variants.h"

namespace mhla::rivals {
namespace {

at::Tensor mix_blocks(const at::Tensor& mix, const at::Tensor& S) {  // S [B, H, M, ...]
  return at::matmul(mix, S.flatten(3)).view(S.sizes());
}

// [B, H, M, C, D]: three batched products, z beside S.
at::Tensor bidirectional_heads(const RivalRequest& r, const Blocks& blocks, const Inputs& in) {
  const at::Tensor q = blocks.split(features(in.q)), k = blocks.split(features(repeat_heads(in.k, r.H)));
  const at::Tensor v = blocks.split(repeat_heads(in.v, r.H));
  const at::Tensor S = mix_blocks(in.mix, at::matmul(k.transpose(-1, -2), v));  // [B, H, M, D, E]
  const at::Tensor z = at::matmul(in.mix, k.sum(3));                            // [B, H, M, D]
  const at::Tensor den = at::matmul(q, z.unsqueeze(-1)) + r.eps;                // [B, H, M, C, 1]
  return blocks.merge(at::matmul(q, S) * r.scale / den);
}

// The same with a column of ones at the end of v: z is the last column of S.
at::Tensor bidirectional_ones(const RivalRequest& r, const Blocks& blocks, const Inputs& in) {
  const at::Tensor q = blocks.split(features(in.q)), k = blocks.split(features(repeat_heads(in.k, r.H)));
  const at::Tensor v = at::constant_pad_nd(blocks.split(repeat_heads(in.v, r.H)), {0, 1}, 1.0);
  const at::Tensor S = mix_blocks(in.mix, at::matmul(k.transpose(-1, -2), v));
  const at::Tensor both = at::matmul(q, S);
  return blocks.merge(both.narrow(-1, 0, r.E) * r.scale / (both.narrow(-1, r.E, 1) + r.eps));
}

// einsum over [B, M, C, H, D], leaving the order of the products to LibTorch.
at::Tensor bidirectional_einsum(const RivalRequest& r, const Blocks& blocks, const Inputs& in) {
  const at::Tensor q = blocks.gather(features(in.q)), k = blocks.gather(features(repeat_heads(in.k, r.H)));
  const at::Tensor v = blocks.gather(repeat_heads(in.v, r.H));
  const at::Tensor S = at::einsum("bmchd,bmche->bmhde", {k, v});
  const at::Tensor mixed = at::einsum("im,bmhde->bihde", {in.mix, S});
  const at::Tensor z = at::einsum("im,bmhd->bihd", {in.mix, k.sum(2)});
  const at::Tensor den = at::einsum("bmchd,bmhd->bmch", {q, z}).unsqueeze(-1) + r.eps;
  return blocks.scatter(at::einsum("bmchd,bmhde->bmche", {q, mixed}) * r.scale / den);
}

// Blocks first: the mixing of all heads and batch elements is one product [M, M] x [M, B H D E].
at::Tensor bidirectional_blocks_first(const RivalRequest& r, const Blocks& blocks, const Inputs& in) {
  const auto arrange = [&](const at::Tensor& x) {
    return blocks.gather(x).permute({1, 0, 3, 2, 4}).contiguous();  // [M, B, H, C, D]
  };
  const at::Tensor q = arrange(features(in.q)), k = arrange(features(repeat_heads(in.k, r.H)));
  const at::Tensor v = arrange(repeat_heads(in.v, r.H));
  const at::Tensor S = at::matmul(k.transpose(-1, -2), v);  // [M, B, H, D, E]
  const at::Tensor mixed = at::mm(in.mix, S.view({blocks.M, -1})).view(S.sizes());
  const at::Tensor z = k.sum(3);  // [M, B, H, D]
  const at::Tensor mixed_z = at::mm(in.mix, z.view({blocks.M, -1})).view(z.sizes());
  const at::Tensor den = at::matmul(q, mixed_z.unsqueeze(-1)) + r.eps;
  return blocks.scatter((at::matmul(q, mixed) * r.scale / den).permute({1, 0, 3, 2, 4}));
}

// Token by token: A = (q~ k~^T) * mix, no summaries. Only for short sequences.
at::Tensor bidirectional_quadratic(const RivalRequest& r, const Blocks& blocks, const Inputs& in) {
  const auto arrange = [&](const at::Tensor& x) { return blocks.split(x).flatten(2, 3); };  // [B, H, N, D]
  const at::Tensor q = arrange(features(in.q)), k = arrange(features(repeat_heads(in.k, r.H)));
  const at::Tensor v = arrange(repeat_heads(in.v, r.H));
  const at::Tensor weights = in.mix.repeat_interleave(blocks.C, 0).repeat_interleave(blocks.C, 1);  // [N, N]
  const at::Tensor A = at::matmul(q, k.transpose(-1, -2)) * weights;
  const at::Tensor out = at::matmul(A, v) * r.scale / (A.sum(-1, true) + r.eps);
  return blocks.merge(out.unflatten(2, {blocks.M, blocks.C}));
}

// The causal form: the prefix through strictly earlier chunks, the open chunk with a triangular mask.
at::Tensor causal_heads(const RivalRequest& r, const Blocks& blocks, const Inputs& in) {
  const at::Tensor q = blocks.split(features(in.q)), k = blocks.split(features(repeat_heads(in.k, r.H)));
  const at::Tensor v = blocks.split(repeat_heads(in.v, r.H));
  const at::Tensor mix = in.mix.narrow(0, 0, blocks.M).narrow(1, 0, blocks.M);
  const at::Tensor prefix = mix_blocks(mix.tril(-1), at::matmul(k.transpose(-1, -2), v));
  const at::Tensor diagonal = mix.diagonal().view({blocks.M, 1, 1});
  const at::Tensor A = at::matmul(q, k.transpose(-1, -2)).tril() * diagonal;  // [B, H, M, C, C]
  return blocks.merge((at::matmul(q, prefix) + at::matmul(A, v)) * r.scale);
}

at::Tensor causal_einsum(const RivalRequest& r, const Blocks& blocks, const Inputs& in) {
  const at::Tensor q = blocks.gather(features(in.q)), k = blocks.gather(features(repeat_heads(in.k, r.H)));
  const at::Tensor v = blocks.gather(repeat_heads(in.v, r.H));
  const at::Tensor mix = in.mix.narrow(0, 0, blocks.M).narrow(1, 0, blocks.M);
  const at::Tensor S = at::einsum("bmchd,bmche->bmhde", {k, v});
  const at::Tensor prefix = at::einsum("im,bmhde->bihde", {mix.tril(-1), S});
  const at::Tensor A = at::einsum("bmchd,bmshd->bmhcs", {q, k}).tril() * mix.diagonal().view({blocks.M, 1, 1, 1});
  const at::Tensor inside = at::einsum("bmhcs,bmshe->bmche", {A, v});
  return blocks.scatter((at::einsum("bmchd,bmhde->bmche", {q, prefix}) + inside) * r.scale);
}

using Function = at::Tensor (*)(const RivalRequest&, const Blocks&, const Inputs&);

}  // namespace

std::vector<Variant> plain_variants(const RivalRequest& request) {
  const Blocks blocks(request);
  std::vector<Variant> variants;
  const auto add = [&](const char* name, Function function) {
    variants.push_back({name, [request, blocks, function](const Inputs& in) { return function(request, blocks, in); }});
  };
  if (request.causal) {
    add("batched products by head", causal_heads);
    add("einsum", causal_einsum);
    return variants;
  }
  add("batched products by head", bidirectional_heads);
  add("batched products by head, ones in v", bidirectional_ones);
  add("blocks first", bidirectional_blocks_first);
  add("einsum", bidirectional_einsum);
  if (request.N <= 1024) add("quadratic", bidirectional_quadratic);
  return variants;
}

}  // namespace mhla::rivals
