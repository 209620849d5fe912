#include "mhla/modules/attention_size.h"

#include <cmath>

#include "mhla/modules/mhla_attention.h"

namespace mhla {
namespace {

double feature_parameters(Features features, double size) {  // of q and k
  switch (features) {
    case Features::kT2r: return 2 * size * size;
    case Features::kHedgehog: return 2 * linear_size(size, size, true);
    case Features::kHadamard: return 4 * linear_size(size, size, true);
    default: return 0;
  }
}

double mix_rows(const MhlaAttentionOptions& o) {
  const auto lines = [&](std::int64_t block) {
    return std::ceil(static_cast<double>(o.max_tokens) / static_cast<double>(block));
  };
  if (o.causal) return lines(o.chunk);
  if (o.layout.rank == 1) return lines(o.layout.block_size);
  double count = 1;
  for (const std::int64_t blocks : o.layout.blocks) count *= static_cast<double>(blocks);
  return count;
}

}  // namespace

AttentionSize size_of(const MhlaAttentionOptions& o) {
  const auto dim = static_cast<double>(o.dim), heads = static_cast<double>(o.heads);
  const double kv_heads = o.kv_heads == 0 ? heads : static_cast<double>(o.kv_heads);
  const auto head = static_cast<double>(o.head_dim == 0 ? o.dim / o.heads : o.head_dim),
             value = static_cast<double>(o.value_dim == 0 ? o.dim / o.heads : o.value_dim);
  const double q = heads * head, k = kv_heads * head, v = kv_heads * value, out = heads * value;
  AttentionSize size;
  size.weights = linear_size(dim, q + k + v, o.qkv_bias) + linear_size(out, dim, o.out_bias);
  if (o.inner_norm) size.weights += 2 * dim;
  size.weights += static_cast<double>(o.short_conv) * (q + k + v);
  if (o.qk_norm) size.weights += q + k;
  size.weights += feature_parameters(o.features, head);
  if (o.lepe != 0) size.weights += channel_conv_size(v, std::pow(static_cast<double>(o.lepe), o.layout.rank));
  if (o.gate != Gate::kNone) size.weights += linear_size(dim, out, o.gate_bias);
  if (o.head_norm) size.weights += value;
  size.mix = std::pow(mix_rows(o), 2) * (o.mix_per_head ? heads : 1.0);
  size.kept = dim + q + k + v + out + (o.gate != Gate::kNone ? out : 0.0);
  return size;
}

}  // namespace mhla
