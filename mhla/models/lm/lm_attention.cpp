#include "mhla/models/lm/lm_attention.h"

#include "mhla/modules/zoo/zoo.h"

namespace mhla {
namespace {

bool is_mhla(const LmConfig& c) { return c.attention == "mhla" || c.attention == "linear"; }

std::int64_t head_size(const LmConfig& c, double expand) {
  return static_cast<std::int64_t>(expand * static_cast<double>(c.dim)) / c.heads;
}

AttentionConfig zoo_config(const LmConfig& c, const std::shared_ptr<RopeCache>& rope) {
  AttentionConfig a;
  a.dim = c.dim, a.heads = c.heads, a.causal = true, a.rope = true, a.maybe_rope_cache = rope;
  return a;
}

}  // namespace

MhlaAttentionOptions mhla_options(const LmConfig& c, const std::shared_ptr<RopeCache>& rope) {
  MhlaAttentionOptions o = MhlaAttentionOptions::lm(c.dim, c.heads, c.official);
  o.head_dim = head_size(c, c.expand_k), o.value_dim = head_size(c, c.expand_v);
  o.kv_heads = c.kv_heads, o.chunk = c.chunk, o.max_tokens = c.context;
  o.features = parse_features(c.features), o.short_conv = c.short_conv;
  o.rope = c.rope, o.rope_base = c.rope_base, o.maybe_rope_cache = rope;
  o.norm_eps = c.norm_eps, o.gate = c.gate ? Gate::kSilu : Gate::kNone;
  o.causal_init = parse_causal_init(c.mix_init), o.mix_init.exp_sigma = c.mix_sigma;
  if (!c.official) o.constraint = MixConstraint{.lo = c.mix_range[0], .hi = c.mix_range[1], .causal = true};
  o.learn_mix = c.learn_mix, o.mix_per_head = c.mix_per_head;
  if (c.attention == "linear") {
    o.max_tokens = c.chunk, o.beyond_mix = BeyondMix::kExtend;
    o.causal_init = CausalInit::kPrefix, o.learn_mix = o.mix_per_head = false, o.constraint.reset();
  }
  return o;
}

AnyAttention make_lm_attention(const LmConfig& c, const std::shared_ptr<RopeCache>& rope) {
  if (!is_mhla(c)) return make_attention(c.attention, zoo_config(c, rope));
  return std::make_shared<MhlaAttentionImpl>(mhla_options(c, rope));
}

AttentionSize lm_attention_size(const LmConfig& c) {
  return is_mhla(c) ? size_of(mhla_options(c)) : attention_size(c.attention, zoo_config(c, nullptr));
}

std::shared_ptr<RopeCache> make_rope_cache(const LmConfig& c) {
  const std::int64_t size =
      is_mhla(c) ? feature_size(parse_features(c.features), head_size(c, c.expand_k)) : c.dim / c.heads;
  return std::make_shared<RopeCache>(size, c.rope_base);
}

}  // namespace mhla
