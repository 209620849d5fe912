#include "mhla/modules/mhla_attention.h"

#include "mhla/core/error.h"
#include "mhla/modules/exact.h"
#include "mhla/modules/plain_attention.h"
#include "mhla/ops/feature_map.h"
#include "mhla/ops/tensor_view.h"

namespace mhla {
namespace {

constexpr const char* kMhlaAttentionEntry = "MhlaAttention";
constexpr std::int64_t kLargestHead = 256;  // value channels that the kernels take

MhlaAttentionOptions checked(MhlaAttentionOptions o) {
  const auto at_least_one = [](std::int64_t value, const char* name) {
    if (value < 1) fail(kMhlaAttentionEntry, ": ", name, " is ", value, ", expected at least 1");
  };
  at_least_one(o.dim, "dim"), at_least_one(o.heads, "heads"), at_least_one(o.chunk, "chunk");
  at_least_one(o.max_tokens, "max_tokens");
  if (o.kv_heads == 0) o.kv_heads = o.heads;
  if (o.kv_heads < 1 || o.heads % o.kv_heads != 0)
    fail(kMhlaAttentionEntry, ": kv_heads is ", o.kv_heads, ", expected a divisor of heads = ", o.heads);
  if ((o.head_dim == 0 || o.value_dim == 0) && o.dim % o.heads != 0)
    fail(kMhlaAttentionEntry, ": dim is ", o.dim, ", expected a multiple of heads = ", o.heads);
  if (o.head_dim == 0) o.head_dim = o.dim / o.heads;
  if (o.value_dim == 0) o.value_dim = o.dim / o.heads;
  at_least_one(o.head_dim, "head_dim"), at_least_one(o.value_dim, "value_dim");
  if (o.causal == (o.layout.rank != 0)) {
    fail(kMhlaAttentionEntry, ": the layout is ", o.causal ? describe(o.layout) + " and causal" : "not given",
         ", expected a layout or causal");
  }
  if (o.lepe != 0 && o.layout.rank < 2)
    fail(kMhlaAttentionEntry, ": lepe is ", o.lepe, ", expected a 2D or 3D layout for it");
  if (o.short_conv != 0 && !o.causal)
    fail(kMhlaAttentionEntry, ": short_conv is ", o.short_conv, ", expected the causal form for it");
  return o;
}

torch::nn::Linear linear(std::int64_t in, std::int64_t out, bool bias) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(bias));
}

RopeTable part_of(const RopeTable& whole, const ops::TokenRange& range) {
  const auto rows = [&](const torch::Tensor& x) { return x.narrow(0, range.first, range.count); };
  return {rows(whole.cos), rows(whole.sin), whole.halves};
}

torch::Tensor initial_mix(const MhlaAttentionOptions& o) {
  const auto rows_of = [&](std::int64_t block) { return (o.max_tokens + block - 1) / block; };
  torch::Tensor mix;
  if (o.causal) {
    mix = torch::empty({rows_of(o.chunk), rows_of(o.chunk)});
    init_causal_mix(o.causal_init, ops::output_view(mix, kMhlaAttentionEntry, "mix"), o.mix_init.exp_sigma);
  } else {
    const BlockGrid grid = BlockGrid::of(
        o.layout, o.layout.rank == 1 ? o.max_tokens : o.layout.grid[0] * o.layout.grid[1] * o.layout.grid[2]);
    mix = torch::empty({grid.count(), grid.count()});
    init_mix(o.mix_init, grid, ops::output_view(mix, kMhlaAttentionEntry, "mix"));
  }
  return o.mix_per_head ? mix.expand({o.heads, -1, -1}).clone() : mix;
}

}  // namespace

MhlaAttentionOptions MhlaAttentionOptions::image(std::int64_t dim, std::int64_t heads, const Layout& layout,
                                                 bool official) {
  MhlaAttentionOptions o;
  o.dim = dim, o.heads = heads, o.layout = layout;
  o.qk_norm = true, o.lepe = 5;
  o.inner_norm = o.mix_init.official = official;
  if (official) o.normalizer = Normalizer::kOfficial;
  return o;
}

MhlaAttentionOptions MhlaAttentionOptions::dit(std::int64_t dim, std::int64_t heads, const Layout& layout,
                                               bool official) {
  MhlaAttentionOptions o = image(dim, heads, layout, official);
  o.qk_norm = false, o.qkv_bias = true, o.lepe = 3, o.lepe_identity = true;
  if (official) o.dropout = 0.1;
  return o;
}

MhlaAttentionOptions MhlaAttentionOptions::video(std::int64_t dim, std::int64_t heads, const Layout& layout,
                                                 bool official) {
  MhlaAttentionOptions o;
  o.dim = dim, o.heads = heads, o.layout = layout;
  o.qkv_bias = o.gate_bias = o.qk_norm = o.rope = o.head_norm = true;
  o.qk_norm_eps = 1e-6;
  o.normalizer = Normalizer::kNone;
  o.mix_init.official = official;
  if (official) o.constraint.reset();
  return o;
}

MhlaAttentionOptions MhlaAttentionOptions::lm(std::int64_t dim, std::int64_t heads, bool official) {
  MhlaAttentionOptions o;
  o.dim = dim, o.heads = heads, o.causal = true;
  o.head_dim = dim / 2 / heads, o.value_dim = dim / heads;
  o.out_bias = false, o.features = fused(FeatureMap::kRelu), o.rope = o.head_norm = true, o.gate = Gate::kSilu;
  o.constraint = MixConstraint{.causal = true};
  o.official_causal_clamp = official;
  if (official) o.constraint.reset();
  return o;
}

MhlaAttentionOptions MhlaAttentionOptions::linear(std::int64_t dim, std::int64_t heads) {
  MhlaAttentionOptions o;
  o.dim = dim, o.heads = heads, o.layout = Layout::line(std::int64_t{1} << 40), o.max_tokens = 1;
  o.qk_norm = true, o.qk_norm_eps = 1e-6, o.features = fused(FeatureMap::kRelu);
  o.learn_mix = false;
  return o;
}

MhlaAttentionImpl::MhlaAttentionImpl(const MhlaAttentionOptions& given) : options_(checked(given)) {
  const MhlaAttentionOptions& o = options_;
  const std::vector<std::int64_t> width = widths();
  const std::int64_t value_width = o.heads * o.value_dim;
  if (o.inner_norm) norm_ = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.dim})));
  qkv_ = register_module("qkv", linear(o.dim, width[0] + width[1] + width[2], o.qkv_bias));
  if (o.short_conv != 0) {
    q_conv_ = register_module("q_conv", ShortConv(width[0], o.short_conv));
    k_conv_ = register_module("k_conv", ShortConv(width[1], o.short_conv));
    v_conv_ = register_module("v_conv", ShortConv(width[2], o.short_conv));
  }
  if (o.qk_norm) {
    q_norm_ = register_module("q_norm", RmsNorm(width[0], o.qk_norm_eps));
    k_norm_ = register_module("k_norm", RmsNorm(width[1], o.qk_norm_eps));
  }
  feature_map_q_ = HeadFeatures(o.features, o.head_dim), feature_map_k_ = HeadFeatures(o.features, o.head_dim);
  if (!feature_map_q_->parameters().empty()) {
    register_module("feature_map_q", feature_map_q_);
    register_module("feature_map_k", feature_map_k_);
  }
  if (o.lepe != 0) lepe_ = register_module("lepe", GridConv(o.layout, width[2], o.lepe));
  if (o.lepe != 0 && o.lepe_identity) lepe_->set_identity();
  if (o.gate != Gate::kNone) gate_ = register_module("gate", linear(o.dim, value_width, o.gate_bias));
  if (o.head_norm) head_norm_ = register_module("head_norm", RmsNorm(o.value_dim, o.norm_eps));
  out_ = register_module("out", linear(value_width, o.dim, o.out_bias));
  dropout_ = register_module("dropout", torch::nn::Dropout(o.dropout));
  mix = register_parameter("mix", initial_mix(o), o.learn_mix);
  const std::int64_t size = feature_size(o.features, o.head_dim);
  rope_ = o.maybe_rope_cache ? o.maybe_rope_cache : std::make_shared<RopeCache>(size, o.rope_base);
  if (o.rope && o.layout.rank > 1) grid_rope_ = GridRope(o.layout, size, o.rope_base);
}

std::vector<std::int64_t> MhlaAttentionImpl::widths() const {
  const MhlaAttentionOptions& o = options_;
  return {o.heads * o.head_dim, o.kv_heads * o.head_dim, o.kv_heads * o.value_dim};
}

Normalizer MhlaAttentionImpl::normalizer() const {
  return options_.normalizer.value_or(options_.causal ? Normalizer::kNone : Normalizer::kPaper);
}

void MhlaAttentionImpl::clamp_mix() const {
  if (!options_.official_causal_clamp) return;
  const torch::NoGradGuard no_gradient;
  const MixConstraint c = MixConstraint::official_causal();
  mix.variable_data().clamp_(c.lo, c.hi);  // not a change that a backward pass must refuse: it saw the same numbers
}

void MhlaAttentionImpl::constrain() {
  if (!options_.constraint) return;
  const MixConstraint& c = *options_.constraint;
  const torch::NoGradGuard no_gradient;
  mix.clamp_(c.lo, c.hi);
  if (c.causal) mix.tril_();
  if (!c.renormalize_rows) return;
  const torch::Tensor sums = mix.sum(-1, /*keepdim=*/true);
  if ((sums == 0).any().item<bool>())
    fail(kMhlaAttentionEntry, "::constrain: a row of mix sums to 0 and cannot be scaled to 1, expected a lo above 0");
  mix.div_(sums);
}

torch::Tensor MhlaAttentionImpl::input(const torch::Tensor& x) {
  if (x.dim() != 3 || x.size(2) != options_.dim)
    fail(kMhlaAttentionEntry, ": x has shape ", c10::str(x.sizes()), ", expected [B, N, ", options_.dim, "]");
  if (!options_.inner_norm) return x;
  ops::NormOptions how;  // LibTorch's own takes no bf16 beside weights in f32 on a CPU
  how.bias = norm_->bias, how.eps = norm_->options.eps(), how.centered = true;
  return ops::norm(x, norm_->weight, how);
}

MhlaAttentionImpl::Projected MhlaAttentionImpl::project(const torch::Tensor& x, const torch::Tensor& cu_seqlens,
                                                        AttentionState* state) {
  Projected p;
  p.y = input(x);
  const std::vector<torch::Tensor> parts = apply_linear(qkv_, p.y).split_with_sizes(widths(), -1);
  torch::Tensor q = parts[0], k = parts[1], v = parts[2];
  if (options_.short_conv != 0 && state != nullptr) {
    q = q_conv_->stream(q, state->tensors.at("q_tail")), k = k_conv_->stream(k, state->tensors.at("k_tail"));
    v = v_conv_->stream(v, state->tensors.at("v_tail"));
  } else if (options_.short_conv != 0) {
    const torch::Tensor places =
        cu_seqlens.defined() ? token_positions(x.size(1), cu_seqlens, x.device()) : torch::Tensor();
    const auto convolved = [&](ShortConv& conv, const torch::Tensor& y) {
      return shared() ? conv->after(ops::rows_before(y, options_.short_conv - 1, *share_->group), y) : conv(y, places);
    };
    q = convolved(q_conv_, q), k = convolved(k_conv_, k), v = convolved(v_conv_, v);
  }
  const auto normed = [&](RmsNorm& norm, const torch::Tensor& y) {
    return plain_ ? plain_rms_norm(y, norm->weight, norm->eps_for(y)) : norm(y);
  };
  if (options_.qk_norm) q = normed(q_norm_, q), k = normed(k_norm_, k);
  p.q = q.unflatten(-1, {options_.heads, options_.head_dim});
  p.k = k.unflatten(-1, {options_.kv_heads, options_.head_dim});
  p.v = v.unflatten(-1, {options_.kv_heads, options_.value_dim});
  return p;
}

MhlaAttentionImpl::Projected MhlaAttentionImpl::heads_of(const torch::Tensor& qkv) const {
  const std::vector<torch::Tensor> parts = qkv.split_with_sizes(widths(), -1);
  Projected p;
  p.q = parts[0].unflatten(-1, {options_.heads, options_.head_dim});
  p.k = parts[1].unflatten(-1, {options_.kv_heads, options_.head_dim});
  p.v = parts[2].unflatten(-1, {options_.kv_heads, options_.value_dim});
  return p;
}

RopeTable MhlaAttentionImpl::rope_table(const torch::Tensor& q, const torch::Tensor& cu_seqlens) {
  if (!options_.rope) return {};
  if (options_.layout.rank > 1) return shared() ? part_of(grid_rope_.at(q), share_->mine) : grid_rope_.at(q);
  if (shared()) return rope_->at(share_->positions, share_->tokens, q);
  return cu_seqlens.defined() ? rope_->packed(cu_seqlens, q.size(1), q) : rope_->at({}, q.size(1), q);
}

FeatureMap MhlaAttentionImpl::prepare(const Projected& p, const RopeTable& table, ops::AttentionInputs& inputs) {
  inputs.v = p.v.stride(-1) == 1 ? p.v : p.v.contiguous();  // behind a convolution channels come first
  if (!maps_outside()) {
    inputs.q = p.q.stride(-1) == 1 ? p.q : p.q.contiguous();
    inputs.k = p.k.stride(-1) == 1 ? p.k : p.k.contiguous();
    return fused_map(options_.features);
  }
  const bool den = options_.rope && normalizer() != Normalizer::kNone;
  if (options_.rope && !den && is_fused(options_.features)) {  // the map on the way
    std::tie(inputs.q, inputs.k) = ops::rope(p.q, p.k, table, fused_map(options_.features));
    return FeatureMap::kIdentity;
  }
  inputs.q = feature_map_q_(p.q).contiguous(), inputs.k = feature_map_k_(p.k).contiguous();
  if (den) inputs.q_den = inputs.q, inputs.k_den = inputs.k;
  if (options_.rope) std::tie(inputs.q, inputs.k) = ops::rope(inputs.q, inputs.k, table);
  return FeatureMap::kIdentity;
}

torch::Tensor MhlaAttentionImpl::forward(const torch::Tensor& x, const torch::Tensor& cu_seqlens) {
  clamp_mix();
  if (learns_packed() && !cu_seqlens.defined()) {
    Projected p;
    p.y = input(x);
    const auto [out, v] = ops::bidirectional_packed(
        apply_linear(qkv_, p.y), mix, {options_.heads, options_.kv_heads, options_.head_dim, options_.value_dim},
        bidirectional_options(fused_map(options_.features)));
    p.v = v;
    return finish(p, out);
  }
  const Projected p = project(x, cu_seqlens);
  ops::AttentionInputs inputs;
  inputs.mix = mix, inputs.cu_seqlens = cu_seqlens;
  const FeatureMap map = prepare(p, rope_table(p.q, cu_seqlens), inputs);
  return finish(p, attend(inputs, map));
}

void MhlaAttentionImpl::share_context(const std::shared_ptr<ContextShare>& share) {
  if (options_.beyond_mix != BeyondMix::kError)
    fail(kMhlaAttentionEntry,
         ": beyond_mix is extend, whose sequences cannot be shared between processes, expected rows of mix for all "
         "chunks");
  share_ = share;
}

torch::Tensor MhlaAttentionImpl::attend(const ops::AttentionInputs& inputs, FeatureMap map) const {
  if (shared()) {
    ops::PhaseOptions how;
    how.causal = options_.causal, how.tokens = share_->tokens;
    how.layout = options_.causal ? Layout::line(options_.chunk) : options_.layout;
    how.feature_map = map, how.normalizer = normalizer(), how.eps = options_.eps, how.scale = options_.scale;
    return ops::shared_attention(inputs, how, *share_->group, share_->method);
  }
  if (options_.causal) {
    ops::AttentionInputs given = inputs;
    // One number for all chunks: the same as a matrix of it, which takes the faster kernels in training. In evaluation
    // the running sum stays, whose bits streaming repeats.
    if (mix.numel() == 1 && !options_.learn_mix && inputs.v.is_cuda() && is_training()) {
      const std::int64_t chunks = (inputs.v.size(1) + options_.chunk - 1) / options_.chunk;
      given.mix = inputs.mix.expand({chunks, chunks}).contiguous();
    }
    return ops::chunkwise(given, {.chunk = options_.chunk,
                                  .feature_map = map,
                                  .normalizer = normalizer(),
                                  .eps = options_.eps,
                                  .scale = options_.scale,
                                  .beyond_mix = options_.beyond_mix});
  }
  const ops::BidirectionalOptions how = bidirectional_options(map);
  return plain_ ? plain_bidirectional(inputs, how) : ops::bidirectional(inputs, how);
}

ops::BidirectionalOptions MhlaAttentionImpl::bidirectional_options(FeatureMap map) const {
  return {.layout = options_.layout,
          .feature_map = map,
          .normalizer = normalizer(),
          .eps = options_.eps,
          .scale = options_.scale.value_or(1.0)};
}

bool MhlaAttentionImpl::learns_packed() const {
  return torch::GradMode::is_enabled() && !options_.causal && !options_.qk_norm && !maps_outside() && !plain_ &&
         !shared();
}

// Column s of the matrix is the output for values that are 1 at token s and 0 elsewhere, as many columns at a time as
// the operator takes value channels.
torch::Tensor MhlaAttentionImpl::matrix(const torch::Tensor& x) {
  const torch::NoGradGuard no_gradient;
  clamp_mix();
  const Projected p = project(x, {});
  const std::int64_t B = x.size(0), N = x.size(1);
  ops::AttentionInputs inputs;
  inputs.mix = mix;
  const FeatureMap map = prepare(p, rope_table(p.q, {}), inputs);
  const torch::Tensor unit = torch::eye(N, p.v.options());
  std::vector<torch::Tensor> columns;
  for (std::int64_t first = 0; first < N; first += kLargestHead) {
    const torch::Tensor some = unit.narrow(1, first, std::min(kLargestHead, N - first)).contiguous();  // [N, E]
    inputs.v = some.view({1, N, 1, -1}).expand({B, N, options_.kv_heads, -1});
    columns.push_back(attend(inputs, map));
  }
  return torch::cat(columns, -1).transpose(1, 2);
}

void MhlaAttentionImpl::use_plain_code(bool plain) {
  if (plain && options_.causal)
    fail(kMhlaAttentionEntry, ": use_plain_code: the layer is causal, expected one that is not");
  plain_ = plain;
}

AttentionScores MhlaAttentionImpl::scores(const torch::Tensor& x) {
  if (options_.causal) fail(kMhlaAttentionEntry, "::scores: the layer is causal, expected the bidirectional form");
  const Projected p = project(x, {});
  ops::AttentionInputs inputs;
  const FeatureMap map = prepare(p, rope_table(p.q, {}), inputs);
  const auto features = [&](const torch::Tensor& y) { return ops::apply_features(y, map).to(torch::kDouble); };
  AttentionScores scores;
  scores.q = features(inputs.q), scores.k = features(inputs.k), scores.v = inputs.v;
  scores.mix = mix.to(torch::kDouble), scores.layout = options_.layout;
  if (normalizer() == Normalizer::kNone) {
    scores.den = torch::ones({x.size(0), x.size(1), 1}, scores.q.options());
  } else {
    const bool own = inputs.q_den.defined();
    scores.den =
        options_.eps + denominators(own ? features(inputs.q_den) : scores.q, own ? features(inputs.k_den) : scores.k,
                                    scores.mix, scores.layout, normalizer());
  }
  scores.q = scores.q * options_.scale.value_or(1.0);
  return scores;
}

torch::Tensor MhlaAttentionImpl::lepe_of(const torch::Tensor& v) {
  const torch::Tensor local = lepe_(v.flatten(-2));
  if (options_.kv_heads == options_.heads) return local;
  return local.unflatten(-1, {options_.kv_heads, options_.value_dim})
      .repeat_interleave(options_.heads / options_.kv_heads, 2)
      .flatten(-2);
}

torch::Tensor MhlaAttentionImpl::finish(const Projected& p, torch::Tensor out) {
  const bool lepe_inside = options_.lepe != 0 && options_.lepe_inside_gate;
  const torch::Tensor gate = options_.gate == Gate::kNone ? torch::Tensor() : apply_linear(gate_, p.y);
  const bool in_norm = options_.head_norm && options_.gate == Gate::kSilu && !lepe_inside;
  if (options_.head_norm) out = head_norm_(out, in_norm ? gate.view_as(out) : torch::Tensor());
  out = out.flatten(-2);
  if (options_.lepe != 0 && !lepe_inside && out.is_cuda() && options_.kv_heads == options_.heads &&
      (options_.gate != Gate::kLinear || in_norm))  // in one pass
    return dropout_(apply_linear(out_, lepe_(p.v.flatten(-2), out, in_norm ? torch::Tensor() : gate)));
  if (lepe_inside) out = out + lepe_of(p.v);
  if (gate.defined() && !in_norm) out = out * (options_.gate == Gate::kSilu ? apply_silu(gate) : gate);
  if (options_.lepe != 0 && !options_.lepe_inside_gate) out = out + lepe_of(p.v);
  return dropout_(apply_linear(out_, out));
}

void MhlaAttentionImpl::set_length(std::int64_t chunk, BeyondMix beyond_mix) {
  if (!options_.causal) fail(kMhlaAttentionEntry, "::set_length: the layer is not causal, expected options.causal");
  if (chunk < 1) fail(kMhlaAttentionEntry, "::set_length: chunk is ", chunk, ", expected at least 1");
  options_.chunk = chunk, options_.beyond_mix = beyond_mix;
}

}  // namespace mhla
