#include "mhla/models/dit/dit_plan.h"

#include <algorithm>

#include "mhla/models/parts.h"
#include "mhla/modules/zoo/zoo.h"
#include "mhla/ops/torch.h"

namespace mhla {
namespace {

// Of MHLA, and of linear attention, which is one block whose coefficient stays 1.
MhlaAttentionOptions mhla_options(const DitConfig& c, const Layout& layout) {
  MhlaAttentionOptions o = MhlaAttentionOptions::dit(c.dim, c.heads, layout, c.official);
  o.features = parse_features(c.features);
  if (!c.official) o.normalizer = parse_normalizer(c.normalizer);
  o.mix_init.transform = parse_mix_transform(c.mix_init);
  o.mix_init.exp_sigma = c.mix_sigma;
  o.constraint = MixConstraint{.lo = c.mix_range[0], .hi = c.mix_range[1]};
  o.learn_mix = c.attention == "mhla" && c.learn_mix, o.mix_per_head = c.attention == "mhla" && c.mix_per_head;
  o.qk_norm = c.qk_norm, o.lepe = c.lepe, o.head_norm = c.head_norm;
  o.gate = c.gate == "silu" ? Gate::kSilu : c.gate == "linear" ? Gate::kLinear : Gate::kNone;
  return o;
}

AttentionConfig zoo_config(const DitConfig& c, const Layout& layout) {
  AttentionConfig a;
  a.dim = c.dim, a.heads = c.heads, a.layout = layout, a.lepe = c.attention == "softmax" ? c.lepe : 0;
  return a;
}

AttentionSize attention_size_of(const DitConfig& c, const Layout& layout) {
  return c.is_mhla() ? size_of(mhla_options(c, layout)) : attention_size(c.attention, zoo_config(c, layout));
}

Layout layout_of(const DitConfig& c) {
  const std::int64_t rows = c.rows(), columns = c.columns();
  if (c.attention != "mhla") return Layout::grid2d(rows, columns, 1, 1);
  const Layout layout = Layout::grid2d(rows, columns, c.blocks[0], c.blocks[1]);
  check_layout(layout, rows * columns, "config: blocks");
  return layout;
}

std::int64_t mlp_width(const DitConfig& c) {
  const double wide = c.mlp_ratio * static_cast<double>(c.dim);
  if (c.family == "dit") return static_cast<std::int64_t>(wide);
  if (c.mlp_inner != 0) return c.mlp_inner;
  constexpr std::int64_t kMultiple = 256;
  return (static_cast<std::int64_t>(wide * 2 / 3) + kMultiple - 1) / kMultiple * kMultiple;
}

double embedder_parameters(const DitConfig& c) {
  const auto dim = static_cast<double>(c.dim), times = static_cast<double>(kTimeChannels);
  const double rows = static_cast<double>(c.classes) + (c.has_null_class() ? 1.0 : 0.0);
  return linear_size(times, dim, true) + linear_size(dim, dim, true) + rows * dim;
}

double block_parameters(const DitConfig& c, const Layout& layout, std::int64_t mlp) {
  const auto dim = static_cast<double>(c.dim), width = static_cast<double>(mlp);
  const bool with_mlp = has_mlp(c.attention);
  double count = attention_size_of(c, layout).parameters() + linear_size(dim, (with_mlp ? 6 : 3) * dim, true);
  for (const std::int64_t taps : {c.cpe, c.dwconv})
    if (taps != 0) count += channel_conv_size(dim, static_cast<double>(taps * taps));
  if (with_mlp)
    count += c.family == "dig" ? 3 * dim * width : linear_size(dim, width, true) + linear_size(width, dim, true);
  return count + (c.own_embedders ? embedder_parameters(c) : 0.0);
}

// Everything but the blocks.
double rest_parameters(const DitConfig& c) {
  const auto dim = static_cast<double>(c.dim), pixels = static_cast<double>(c.patch * c.patch);
  const double tokens = static_cast<double>(c.rows()) * static_cast<double>(c.columns());
  return tokens * dim + linear_size(static_cast<double>(c.channels) * pixels, dim, true) +
         linear_size(dim, 2 * dim, true) + linear_size(dim, pixels * static_cast<double>(c.out_channels()), true) +
         (c.own_embedders ? 0.0 : embedder_parameters(c));
}

// The published scan leaves the tokens as they lie after the last block: in order after every fourth.
void expect_order(const DitConfig& c, std::int64_t depth) {
  if (c.scan && c.image[0] != c.image[1] && depth % 4 != 0)
    fail("config: scan is true for ", c.image[0], " x ", c.image[1], " and ", depth,
         " blocks, expected a square or a multiple of 4: else the tokens end up transposed");
}

}  // namespace

AnyAttention make_dit_attention(const DitConfig& c, const Layout& layout) {
  if (c.is_mhla()) return std::make_shared<MhlaAttentionImpl>(mhla_options(c, layout));
  return make_attention(c.attention, zoo_config(c, layout));
}

DitPlan plan_of(const DitConfig& c) {
  check(c);
  DitPlan plan;
  plan.layout = layout_of(c), plan.depth = c.depth, plan.mlp = has_mlp(c.attention), plan.width = mlp_width(c);
  plan.block_parameters = block_parameters(c, plan.layout, plan.width);
  if (plan.mlp) {
    expect_order(c, plan.depth);
    return plan;
  }
  DitConfig softmax = c;
  softmax.attention = "softmax", softmax.scan = false;
  const double wanted = block_parameters(softmax, plan.layout, plan.width), rest = rest_parameters(c);
  plan.depth =
      nearest_depth(static_cast<std::int64_t>(plan.block_parameters), static_cast<std::int64_t>(wanted), c.depth);
  expect_matched("Dit", c.attention,
                 static_cast<std::int64_t>(rest + static_cast<double>(plan.depth) * plan.block_parameters),
                 static_cast<std::int64_t>(rest + static_cast<double>(c.depth) * wanted));
  expect_order(c, plan.depth);
  return plan;
}

ModelSize size_of(const DitConfig& c) {
  const DitPlan plan = plan_of(c);
  const auto depth = static_cast<double>(plan.depth), dim = static_cast<double>(c.dim);
  const double tokens = static_cast<double>(c.rows()) * static_cast<double>(c.columns());
  const double pixels = static_cast<double>(c.image[0]) * static_cast<double>(c.image[1]) *
                        static_cast<double>(c.channels + c.out_channels());
  const double width = plan.mlp ? static_cast<double>(plan.width) : 0.0;
  const double attention = attention_size_of(c, plan.layout).kept;
  // Inputs of the norms, what is modulated, inputs of the convolutions and of the MLP; its middle before and after
  // GELU.
  const double convolved = (c.cpe != 0 ? dim : 0.0) + (c.dwconv != 0 ? dim : 0.0);
  double block = tokens * (convolved + 2 * dim + attention + (plan.mlp ? 3 * dim + 2 * width : 0.0));
  double passing = tokens * (2 * dim + std::max(attention, 2 * width));
  if (c.attention == "softmax" && TORCH_VERSION_MAJOR < 2) {
    const double pairs = static_cast<double>(c.heads) * tokens * tokens;
    block += pairs, passing += 2 * pairs;
  }
  ModelSize size;
  size.parameters = rest_parameters(c) + depth * plan.block_parameters;
  size.kept = pixels + depth * block;
  size.passing = pixels + passing;
  return size;
}

}  // namespace mhla
