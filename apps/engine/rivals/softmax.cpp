// Softmax attention: LibTorch's own scaled dot product, and matrix products with a softmax between them, whole or a
// slice of queries at a time so that the scores stay in cache.
#include <cmath>

#include "apps/engine/rivals/variants.h"

namespace mhla::rivals {
namespace {

struct Heads {
  at::Tensor q, k, v;  // [B, H, N, D]
};

Heads by_head(const RivalRequest& r, const Inputs& in) {
  return {in.q.transpose(1, 2).contiguous(), repeat_heads(in.k, r.H).transpose(1, 2).contiguous(),
          repeat_heads(in.v, r.H).transpose(1, 2).contiguous()};
}

at::Tensor by_token(const at::Tensor& out) { return out.transpose(1, 2).contiguous(); }

at::Tensor library_call(const RivalRequest& r, const Inputs& in) {
  const Heads heads = by_head(r, in);
#if TORCH_VERSION_MAJOR >= 2
  return by_token(at::scaled_dot_product_attention(heads.q, heads.k, heads.v, {}, 0.0, r.causal != 0));
#else
  return by_token(std::get<0>(
      at::_scaled_dot_product_attention(heads.q, heads.k, heads.v, c10::nullopt, 0.0, false, r.causal != 0)));
#endif
}

at::Tensor sliced(const RivalRequest& r, const Inputs& in, int64_t rows) {
  const Heads heads = by_head(r, in);
  const at::Tensor q = heads.q * (1.0 / std::sqrt(static_cast<double>(r.D)));
  const at::Tensor keys = heads.k.transpose(-1, -2);
  std::vector<at::Tensor> parts;
  for (int64_t begin = 0; begin < r.N; begin += rows) {
    const int64_t count = std::min(rows, r.N - begin);
    const int64_t seen = r.causal ? begin + count : r.N;
    at::Tensor scores = at::matmul(q.narrow(2, begin, count), keys.narrow(3, 0, seen));
    if (r.causal) {
      const at::Tensor later = at::ones({count, seen}, q.options().dtype(at::kBool)).triu(begin + 1);
      scores = scores.masked_fill(later, -INFINITY);
    }
    parts.push_back(at::matmul(scores.softmax(-1), heads.v.narrow(2, 0, seen)));
  }
  return by_token(parts.size() == 1 ? parts.front() : at::cat(parts, 2));
}

}  // namespace

std::vector<Variant> softmax_variants(const RivalRequest& request) {
  std::vector<Variant> variants;
  const double score_bytes = 4.0 * static_cast<double>(request.B * request.H) * static_cast<double>(request.N) *
                             static_cast<double>(request.N);
  constexpr double kWholeLimit = 4e9;  // bytes of scores that may be in memory at once
  if (score_bytes <= kWholeLimit) {
    variants.push_back({"scaled_dot_product", [=](const Inputs& in) { return library_call(request, in); }});
    variants.push_back({"whole", [=](const Inputs& in) { return sliced(request, in, request.N); }});
  }
  for (const int64_t rows : {128, 512}) {
    if (rows >= request.N) continue;
    variants.push_back({"slices of " + std::to_string(rows) + " queries",
                        [=](const Inputs& in) { return sliced(request, in, rows); }});
  }
  return variants;
}

}  // namespace mhla::rivals
