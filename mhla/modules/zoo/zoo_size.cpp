#include "mhla/modules/zoo/zoo_size.h"

#include <algorithm>

namespace mhla {
namespace {

// What all over a grid of `dim` channels begin and end with: q, k and v from one product, a projection.
double qkv_and_projection(double dim, bool bias) {
  return linear_size(dim, 3 * dim, bias) + linear_size(dim, dim, bias);
}

}  // namespace

AttentionSize softmax_size(const AttentionConfig& c) {
  const auto dim = static_cast<double>(c.dim), lepe = static_cast<double>(c.lepe);
  AttentionSize size;
  size.weights = qkv_and_projection(dim, !c.causal);
  if (c.lepe != 0) size.weights += channel_conv_size(dim, c.layout.rank == 3 ? lepe * lepe * lepe : lepe * lepe);
  size.kept = 5 * dim;  // the input, q, k, v and what is projected
  return size;
}

AttentionSize gla_size(const AttentionConfig& c) {
  const auto dim = static_cast<double>(c.dim), rank = static_cast<double>(kGateRank);
  const auto keys = static_cast<double>(c.heads * (c.dim / 2 / c.heads)), value = static_cast<double>(c.dim / c.heads);
  const double values = static_cast<double>(c.heads) * value;
  AttentionSize size;
  size.weights = 2 * dim * keys + 2 * dim * values + dim * rank + linear_size(rank, keys, true) + value + values * dim;
  size.kept = dim + 3 * keys + 3 * values;
  return size;
}

AttentionSize gdn_size(const AttentionConfig& c) {
  const auto dim = static_cast<double>(c.dim), heads = static_cast<double>(c.heads), taps = static_cast<double>(kTaps),
             key = static_cast<double>(3 * c.dim / 4 / c.heads);
  const double keys = heads * key, value = 2 * key, values = heads * value;
  AttentionSize size;
  size.weights = 2 * dim * keys + 2 * dim * values + 2 * dim * heads + taps * (2 * keys + values) + 2 * heads + value +
                 values * dim;
  size.kept = dim + 4 * keys + 4 * values;
  return size;
}

AttentionSize mamba_size(const AttentionConfig& c) {
  const auto dim = static_cast<double>(c.dim), rank = static_cast<double>((c.dim + 15) / 16),
             states = static_cast<double>(kMambaStates);
  const double inner = 2 * dim;
  AttentionSize size;
  size.weights = dim * 2 * inner + channel_conv_size(inner, static_cast<double>(kTaps)) + inner * (rank + 2 * states) +
                 linear_size(rank, inner, true) + inner * states + inner + inner * dim;
  size.kept = dim + 4 * inner;
  return size;
}

AttentionSize mamba2_size(const AttentionConfig& c) {
  const std::int64_t inner_channels = 2 * c.dim, head = std::min(kMamba2Head, inner_channels);
  const auto dim = static_cast<double>(c.dim), inner = static_cast<double>(inner_channels),
             heads = static_cast<double>(inner_channels / head);
  const double convolved = inner + 2 * static_cast<double>(kMamba2States);
  AttentionSize size;
  size.weights = dim * (inner + convolved + heads) + channel_conv_size(convolved, static_cast<double>(kTaps)) +
                 3 * heads + inner + inner * dim;
  size.kept = dim + 2 * inner + 2 * convolved;
  return size;
}

AttentionSize focused_size(const AttentionConfig& c) {
  const auto dim = static_cast<double>(c.dim);
  const auto tokens = static_cast<double>(c.layout.grid[1]) * static_cast<double>(c.layout.grid[2]);
  AttentionSize size;
  size.weights =
      qkv_and_projection(dim, true) + dim + tokens * dim + channel_conv_size(static_cast<double>(c.dim / c.heads), 25);
  size.kept = 5 * dim;
  return size;
}

AttentionSize inline_size(const AttentionConfig& c) {
  const auto dim = static_cast<double>(c.dim), head = static_cast<double>(c.dim / c.heads);
  AttentionSize size;
  size.weights = qkv_and_projection(dim, true) + channel_conv_size(dim, head) + channel_conv_size(9 * dim, head);
  size.kept = 5 * dim;
  return size;
}

AttentionSize gated_size(const AttentionConfig& c) {
  const auto dim = static_cast<double>(c.dim);
  AttentionSize size;
  size.weights = linear_size(dim, 4 * dim, true) + channel_conv_size(dim, 25) + linear_size(dim, dim, true);
  size.kept = 6 * dim;
  return size;
}

}  // namespace mhla
