#include "mhla/models/classify/classifier_attention.h"

#include "mhla/modules/zoo/gated_image.h"
#include "mhla/modules/zoo/zoo.h"
#include "mhla/modules/zoo/zoo_size.h"

namespace mhla {
namespace {

void set_mixing(const ClassifierConfig& c, MhlaAttentionOptions& o) {
  o.features = parse_features(c.features);
  if (!c.official) o.normalizer = parse_normalizer(c.normalizer);
  o.mix_init.transform = parse_mix_transform(c.mix_init);
  o.mix_init.exp_sigma = c.mix_sigma;
  o.mix_init.official = c.official;
  o.constraint = MixConstraint{.lo = c.mix_range[0], .hi = c.mix_range[1]};
  o.learn_mix = c.learn_mix, o.mix_per_head = c.mix_per_head;
}

// Plain linear attention is one block whose coefficient stays 1.
Layout one_block(const Layout& layout) { return Layout::grid2d(layout.grid[1], layout.grid[2], 1, 1); }

AttentionConfig zoo_config(std::int64_t dim, std::int64_t heads, const Layout& layout, std::int64_t lepe) {
  AttentionConfig a;
  a.dim = dim, a.heads = heads, a.layout = layout, a.lepe = lepe;
  return a;
}

// Of MHLA and linear attention, which are one module.
MhlaAttentionOptions deit_options(const ClassifierConfig& c, const Layout& layout) {
  MhlaAttentionOptions o;
  if (c.attention == "mhla") {
    o = MhlaAttentionOptions::image(c.dims[0], c.heads[0], layout, c.official);
    set_mixing(c, o);
  } else {
    o = MhlaAttentionOptions::linear(c.dims[0], c.heads[0]);
    o.layout = one_block(layout);
  }
  o.qkv_bias = c.qkv_bias, o.qk_norm = c.qk_norm, o.lepe = c.lepe;
  return o;
}

MhlaAttentionOptions vlt_options(const ClassifierConfig& c, std::string_view name, std::size_t stage,
                                 const Layout& layout) {
  MhlaAttentionOptions o;
  o.dim = c.dims[stage], o.heads = c.heads[stage], o.layout = name == "mhla" ? layout : one_block(layout);
  o.qkv_bias = o.gate_bias = o.rope = true;
  o.gate = Gate::kLinear, o.lepe = c.lepe, o.lepe_inside_gate = true;
  set_mixing(c, o);
  o.qk_norm = c.qk_norm;
  if (name == "linear") o.learn_mix = false;
  return o;
}

bool is_mhla(std::string_view name) { return name == "mhla" || name == "linear"; }

AttentionConfig deit_zoo(const ClassifierConfig& c, const Layout& layout) {
  return zoo_config(c.dims[0], c.heads[0], layout, c.attention == "softmax" ? c.lepe : 0);
}

}  // namespace

Layout stage_layout(const ClassifierConfig& c, std::size_t stage, std::int64_t rows, std::int64_t columns) {
  if (c.attention != "mhla" || stage >= c.blocks.size()) return Layout::grid2d(rows, columns, 1, 1);
  const Layout layout = Layout::grid2d(rows, columns, c.blocks[stage][0], c.blocks[stage][1]);
  check_layout(layout, rows * columns, "config: blocks");
  return layout;
}

AnyAttention make_deit_attention(const ClassifierConfig& c, const Layout& layout) {
  if (is_mhla(c.attention)) return std::make_shared<MhlaAttentionImpl>(deit_options(c, layout));
  return make_attention(c.attention, deit_zoo(c, layout));
}

AttentionSize deit_attention_size(const ClassifierConfig& c, const Layout& layout) {
  return is_mhla(c.attention) ? size_of(deit_options(c, layout)) : attention_size(c.attention, deit_zoo(c, layout));
}

AnyAttention make_vlt_attention(const ClassifierConfig& c, std::string_view name, std::size_t stage,
                                const Layout& layout) {
  if (is_mhla(name)) return std::make_shared<MhlaAttentionImpl>(vlt_options(c, name, stage, layout));
  const AttentionConfig a = zoo_config(c.dims[stage], c.heads[stage], layout, 0);
  if (name == "softmax") return std::make_shared<GatedImageAttentionImpl>(a, GatedImageAttentionImpl::Core::kSoftmax);
  return make_attention(name, a);
}

AttentionSize vlt_attention_size(const ClassifierConfig& c, std::string_view name, std::size_t stage,
                                 const Layout& layout) {
  if (is_mhla(name)) return size_of(vlt_options(c, name, stage, layout));
  const AttentionConfig a = zoo_config(c.dims[stage], c.heads[stage], layout, 0);
  return name == "softmax" ? gated_size(a) : attention_size(name, a);
}

}  // namespace mhla
