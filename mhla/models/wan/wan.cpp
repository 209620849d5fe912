#include "mhla/models/wan/wan.h"

#include <cmath>

#include "mhla/core/error.h"
#include "mhla/kernels/mixing/mixing.h"
#include "mhla/models/grid_parts.h"
#include "mhla/models/recompute.h"
#include "mhla/modules/exact.h"
#include "mhla/modules/feature_maps.h"
#include "mhla/ops/feature_map.h"
#include "mhla/ops/ops.h"
#include "mhla/ops/tensor_view.h"

namespace mhla {
namespace {

constexpr const char* kWanEntry = "Wan";
constexpr double kRopeBase = 10000.0;

Layout layout_of(const VideoGrid& grid, const std::array<std::int64_t, 3>& blocks) {
  return Layout::grid3d({grid[0], grid[1], grid[2]}, {blocks[0], blocks[1], blocks[2]});
}

std::int64_t tokens_in(const VideoGrid& grid) { return grid[0] * grid[1] * grid[2]; }

torch::Tensor heads_of(const torch::Tensor& x, std::int64_t heads) { return x.unflatten(-1, {heads, -1}); }

// What the branches of a model compute in: 16 bits where its weights have them; else the stream's, or autocast's.
std::optional<torch::ScalarType> branch_type(const torch::nn::Linear& layer) {
  const torch::ScalarType type = layer->weight.scalar_type();
  return type == torch::kBFloat16 || type == torch::kHalf ? std::optional(type) : std::nullopt;
}

torch::Tensor attended(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                       const torch::Tensor& mask) {
  const auto turned = [](const torch::Tensor& x) { return x.transpose(1, 2); };
  return ops::softmax_attention(turned(q), turned(k), turned(v), /*causal=*/false, mask).transpose(1, 2).flatten(-2);
}

}  // namespace

Layout wan_layout(const WanConfig& c, const VideoGrid& grid) {
  VideoGrid used{};
  for (std::size_t axis = 0; axis < 3; ++axis) used[axis] = filled_blocks(grid[axis], c.blocks[axis]);
  return layout_of(grid, used);
}

torch::Tensor wan_time_features(const torch::Tensor& t, std::int64_t channels, bool wide) {
  const auto type = wide ? torch::kDouble : torch::kFloat;
  const std::int64_t half = channels / 2;
  const torch::Tensor k = torch::arange(half, t.options().dtype(type).requires_grad(false));
  const torch::Tensor angles =
      t.to(type).unsqueeze(1) * torch::pow(10000.0, k.neg() / static_cast<double>(half)).unsqueeze(0);
  return torch::cat({angles.cos(), angles.sin()}, 1);
}

const RopeTable& VideoRopes::at(const VideoGrid& grid, const torch::Tensor& like) {
  auto found = tables_.find(grid);
  if (found == tables_.end()) {
    if (tables_.size() >= 16) tables_.clear();  // a server may see many sizes
    found = tables_.emplace(grid, GridRope(layout_of(grid, {1, 1, 1}), head_dim_, kRopeBase)).first;
  }
  return found->second.at(like);
}

WanSelfAttentionImpl::WanSelfAttentionImpl(const WanConfig& c, std::int64_t layer, std::shared_ptr<VideoRopes> ropes)
    : config_(c), attention_(c.attention_of(layer)), ropes_(std::move(ropes)) {
  q_ = register_module("q", torch::nn::Linear(c.dim, c.dim)),
  k_ = register_module("k", torch::nn::Linear(c.dim, c.dim));
  v_ = register_module("v", torch::nn::Linear(c.dim, c.dim)),
  o_ = register_module("o", torch::nn::Linear(c.dim, c.dim));
  norm_q_ = register_module("norm_q", RmsNorm(c.dim, c.eps)),
  norm_k_ = register_module("norm_k", RmsNorm(c.dim, c.eps));
  if (attention_ == "softmax") return;
  if (c.head_norm) g_norm_ = register_module("g_norm", RmsNorm(c.dim / c.heads, 1e-6));
  if (c.gate == "silu") g_ = register_module("g", torch::nn::Linear(c.dim, c.dim));
  if (c.lepe != 0) {
    const auto folder = add_folder(*this, "lepe");
    const double bound = 1.0 / std::sqrt(static_cast<double>(c.lepe * c.lepe * c.lepe));
    lepe_weight_ =
        folder->register_parameter("weight", torch::empty({c.dim, 1, c.lepe, c.lepe, c.lepe}).uniform_(-bound, bound));
    lepe_bias_ = folder->register_parameter("bias", torch::empty({c.dim}).uniform_(-bound, bound));
  }
  if (attention_ != "mhla") return;
  const BlockGrid grid = BlockGrid::of(layout_of(c.blocks, c.blocks), tokens_in(c.blocks));
  torch::Tensor start = torch::empty({grid.count(), grid.count()});
  MixInit init;
  init.transform = parse_mix_transform(c.mix_init), init.exp_sigma = c.mix_sigma, init.official = c.official;
  init_mix(init, grid, ops::output_view(start, kWanEntry, "mix"));
  mix = register_parameter("mix", start, c.learn_mix);
}

std::map<std::string, ParamRole> WanSelfAttentionImpl::param_roles() const {
  if (!mix.defined()) return {};
  return {{"mix", ParamRole::kMix}};
}

void WanSelfAttentionImpl::share_context(const std::shared_ptr<ContextShare>& share) {
  if (attention_ != "mhla")
    fail(kWanEntry, ": videos cannot be shared between processes with ", attention_, " attention, expected mhla");
  share_ = share;
}

void WanSelfAttentionImpl::constrain() {
  const torch::NoGradGuard no_gradient;
  if (mix.defined() && !config_.official) mix.clamp_(config_.mix_range[0], config_.mix_range[1]);
}

ops::NormRopeInputs WanSelfAttentionImpl::queries(const torch::Tensor& q, const torch::Tensor& k) const {
  return {q, k, norm_q_->weight, norm_k_->weight, config_.heads, config_.eps};
}

// MHLA or linear attention of one grid: norm, features, rotary positions, mixing. q and k are [B, N, H D], v and the
// result [B, N, H, D].
torch::Tensor WanSelfAttentionImpl::attend(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                                           const VideoGrid& grid) {
  const WanConfig& c = config_;
  const bool shared = share_ != nullptr && share_->active();
  RopeTable table = ropes_->at(grid, q);
  if (shared) {
    const auto [first, count] = share_->mine;
    table.cos = table.cos.narrow(0, first, count), table.sin = table.sin.narrow(0, first, count);
  }
  const FeatureMap map = fused_map(parse_features(c.features));
  ops::AttentionInputs inputs;
  inputs.v = v;
  ops::BidirectionalOptions how;
  how.feature_map = FeatureMap::kIdentity, how.eps = c.normalizer_eps;
  if (c.normalizer == "none") {
    how.normalizer = Normalizer::kNone;
    std::tie(inputs.q, inputs.k) = ops::norm_rope(queries(q, k), table, map);
  } else {
    how.normalizer = c.normalizer == "paper" ? Normalizer::kPaper : Normalizer::kOfficial;
    inputs.q_den = ops::apply_features(heads_of(norm_q_(q), c.heads), map).contiguous();
    inputs.k_den = ops::apply_features(heads_of(norm_k_(k), c.heads), map).contiguous();
    std::tie(inputs.q, inputs.k) = ops::rope(inputs.q_den, inputs.k_den, table);
  }
  const torch::ScalarType wide = q.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  if (attention_ == "linear") {
    how.layout = layout_of(grid, {1, 1, 1});
    inputs.mix = torch::ones({1, 1}, q.options().dtype(wide).requires_grad(false));
    return ops::bidirectional(inputs, how);
  }
  how.layout = wan_layout(c, grid);
  const std::array<std::int64_t, 3>& used = how.layout.blocks;
  torch::Tensor own = mix.view({c.blocks[0], c.blocks[1], c.blocks[2], c.blocks[0], c.blocks[1], c.blocks[2]});
  for (std::size_t axis = 0; axis < 3; ++axis) {
    own = own.narrow(static_cast<std::int64_t>(axis), 0, used[axis])
              .narrow(static_cast<std::int64_t>(axis) + 3, 0, used[axis]);
  }
  const std::int64_t M = used[0] * used[1] * used[2];
  inputs.mix = own.reshape({M, M});
  if (!shared) return ops::bidirectional(inputs, how);
  ops::PhaseOptions part;
  part.layout = how.layout, part.tokens = share_->tokens, part.feature_map = how.feature_map;
  part.normalizer = how.normalizer, part.eps = how.eps;
  return ops::shared_attention(inputs, part, *share_->group, share_->method);
}

torch::Tensor WanSelfAttentionImpl::softmax(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                                            const std::vector<VideoGrid>& grids, const torch::Tensor& mask) {
  if (grids.size() == 1) {
    const auto [turned_q, turned_k] = ops::norm_rope(queries(q, k), ropes_->at(grids[0], q));
    return attended(turned_q, turned_k, v, mask);
  }
  const torch::Tensor normed_q = heads_of(norm_q_(q), config_.heads), normed_k = heads_of(norm_k_(k), config_.heads);
  std::vector<torch::Tensor> qs, ks;  // tokens after the end of a video are not turned
  for (std::size_t b = 0; b < grids.size(); ++b) {
    const std::int64_t row = static_cast<std::int64_t>(b), own = tokens_in(grids[b]), rest = q.size(1) - own;
    const auto part = [&](const torch::Tensor& x, std::int64_t from, std::int64_t count) {
      return x.narrow(0, row, 1).narrow(1, from, count).contiguous();
    };
    const auto [tq, tk] = ops::rope(part(normed_q, 0, own), part(normed_k, 0, own), ropes_->at(grids[b], q));
    qs.push_back(torch::cat({tq, part(normed_q, own, rest)}, 1));
    ks.push_back(torch::cat({tk, part(normed_k, own, rest)}, 1));
  }
  return attended(torch::cat(qs), torch::cat(ks), v, mask);
}

torch::Tensor WanSelfAttentionImpl::forward(const torch::Tensor& x, const std::vector<VideoGrid>& grids,
                                            const torch::Tensor& mask) {
  const WanConfig& c = config_;
  const torch::Tensor q = apply_linear(q_, x), k = apply_linear(k_, x);  // the norm comes with the rotary positions
  const torch::Tensor v = heads_of(apply_linear(v_, x), c.heads);
  if (attention_ == "softmax") return apply_linear(o_, softmax(q, k, v, grids, mask));
  if (grids.size() != 1)
    fail(kWanEntry, ": videos of different grids in one batch with ", attention_, " attention, expected one by one");
  const torch::Tensor gate = g_.is_empty() ? torch::Tensor() : heads_of(apply_linear(g_, x), c.heads);
  torch::Tensor out = attend(q, k, v, grids[0]);
  if (c.head_norm)
    out = g_norm_(out, gate);
  else if (gate.defined())
    out = out * torch::silu(gate);
  out = out.flatten(-2);
  if (c.lepe != 0) {
    const std::vector<std::int64_t> grid(grids[0].begin(), grids[0].end());
    const ops::GridConvInputs lepe{v.flatten(-2), lepe_weight_, lepe_bias_, out, {}};
    const bool shared = share_ != nullptr && share_->active();
    out = shared ? ops::shared_grid_conv(lepe, grid, *share_->group) : ops::grid_conv(lepe, grid);
  }
  return apply_linear(o_, out);
}

WanCrossAttentionImpl::WanCrossAttentionImpl(const WanConfig& c) : heads_(c.heads) {
  q_ = register_module("q", torch::nn::Linear(c.dim, c.dim)),
  k_ = register_module("k", torch::nn::Linear(c.dim, c.dim));
  v_ = register_module("v", torch::nn::Linear(c.dim, c.dim)),
  o_ = register_module("o", torch::nn::Linear(c.dim, c.dim));
  norm_q_ = register_module("norm_q", RmsNorm(c.dim, c.eps)),
  norm_k_ = register_module("norm_k", RmsNorm(c.dim, c.eps));
}

torch::Tensor WanCrossAttentionImpl::forward(const torch::Tensor& x, const torch::Tensor& text) {
  const torch::Tensor q = norm_q_(apply_linear(q_, x)), k = norm_k_(apply_linear(k_, text));
  const torch::Tensor v = apply_linear(v_, text);
  return apply_linear(o_, attended(heads_of(q, heads_), heads_of(k, heads_), heads_of(v, heads_), {}));
}

WanBlockImpl::WanBlockImpl(const WanConfig& c, std::int64_t layer, std::shared_ptr<VideoRopes> ropes)
    : eps_(c.eps),
      self_attn_(register_module("self_attn", WanSelfAttention(c, layer, std::move(ropes)))),
      cross_attn_(register_module("cross_attn", WanCrossAttention(c))),
      norm3_(register_module("norm3", torch::nn::LayerNorm(torch::nn::LayerNormOptions({c.dim}).eps(c.eps)))) {
  const auto mlp = add_folder(*this, "ffn");
  fc1_ = mlp->register_module("0", torch::nn::Linear(c.dim, c.mlp));
  fc2_ = mlp->register_module("2", torch::nn::Linear(c.mlp, c.dim));
  modulation_ = register_parameter("modulation", torch::randn({1, 6, c.dim}) / std::sqrt(static_cast<double>(c.dim)));
}

ResidualStream WanBlockImpl::forward(ResidualStream stream, const torch::Tensor& rows, const torch::Tensor& text,
                                     const std::vector<VideoGrid>& grids, const torch::Tensor& mask) {
  const std::optional<torch::ScalarType> type = branch_type(fc1_);  // the stream is wider or the same
  const torch::ScalarType wide = rows.scalar_type();
  const std::vector<torch::Tensor> m = (modulation_.to(wide) + rows).chunk(6, 1);  // [B, 1, C] each
  const auto for_all = [&](const torch::Tensor& row) { return row.to(wide).view({1, 1, -1}).expand_as(m[0]); };
  stream.branch = self_attn_(stream.norm(m[0], m[1], eps_, type), grids, mask), stream.gate = m[2];
  const torch::Tensor seen = stream.norm(for_all(norm3_->bias), for_all(norm3_->weight.to(wide) - 1), eps_, type);
  stream.branch = cross_attn_(seen, text), stream.gate = torch::ones_like(m[0]);
  const torch::Tensor inner = stream.norm(m[3], m[4], eps_, type);
  stream.branch = apply_linear(fc2_, apply_linear_gelu(fc1_, inner)), stream.gate = m[5];
  return stream;
}

WanImpl::WanImpl(const WanConfig& given) : config_(given) {
  check(config_);
  const WanConfig& c = config_;
  const auto patches = add_folder(*this, "patch_embedding");
  patch_weight_ =
      patches->register_parameter("weight", torch::empty({c.dim, c.channels, c.patch[0], c.patch[1], c.patch[2]}));
  patch_bias_ = patches->register_parameter("bias", torch::zeros({c.dim}));
  const auto text = add_folder(*this, "text_embedding"), time = add_folder(*this, "time_embedding");
  text_in_ = text->register_module("0", torch::nn::Linear(c.text_dim, c.dim));
  text_out_ = text->register_module("2", torch::nn::Linear(c.dim, c.dim));
  time_in_ = time->register_module("0", torch::nn::Linear(c.time_channels, c.dim));
  time_out_ = time->register_module("2", torch::nn::Linear(c.dim, c.dim));
  time_rows_ = add_folder(*this, "time_projection")->register_module("1", torch::nn::Linear(c.dim, 6 * c.dim));
  if (c.vocab != 0)
    words_ = add_folder(*this, "word_embedding")->register_parameter("weight", torch::randn({c.vocab, c.text_dim}));
  const auto ropes = std::make_shared<VideoRopes>(c.dim / c.heads);
  const auto blocks = add_folder(*this, "blocks");
  for (std::int64_t i = 0; i < c.depth; ++i)
    blocks_.push_back(blocks->register_module(std::to_string(i), WanBlock(c, i, ropes)));
  const auto head = add_folder(*this, "head");
  head_ =
      head->register_module("head", torch::nn::Linear(c.dim, c.patch[0] * c.patch[1] * c.patch[2] * c.out_channels));
  head_rows_ =
      head->register_parameter("modulation", torch::randn({1, 2, c.dim}) / std::sqrt(static_cast<double>(c.dim)));
  const torch::NoGradGuard no_gradient;
  for (const auto& item : named_modules("", /*include_self=*/false)) {
    if (auto* layer = item.value()->as<torch::nn::LinearImpl>(); layer != nullptr) {
      torch::nn::init::xavier_uniform_(layer->weight);
      layer->bias.zero_();
    }
  }
  const double fan = static_cast<double>(patch_weight_[0].numel() + c.dim);
  patch_weight_.uniform_(-std::sqrt(6.0 / fan), std::sqrt(6.0 / fan));
  for (torch::nn::Linear* layer : {&text_in_, &text_out_, &time_in_, &time_out_}) (*layer)->weight.normal_(0.0, 0.02);
  head_->weight.zero_();  // starts with a velocity of 0
  if (words_.defined()) words_[0].zero_();
}

VideoGrid WanImpl::grid_of(const torch::Tensor& video) const {
  const WanConfig& c = config_;
  VideoGrid grid{};
  if (video.dim() != 5 || video.size(1) != c.channels)
    fail(kWanEntry, ": x has shape ", c10::str(video.sizes()), ", expected [B, ", c.channels,
         ", frames, rows, columns]");
  for (std::size_t axis = 0; axis < 3; ++axis) {
    const std::int64_t size = video.size(static_cast<std::int64_t>(axis) + 2), side = c.patch[axis];
    if (size < 1 || size % side != 0)
      fail(kWanEntry, ": x has ", size, " ",
           axis == 0   ? "frames"
           : axis == 1 ? "rows"
                       : "columns",
           " of latents, expected a multiple of ", side, ": ", std::max(side, size / side * side), " is the nearest");
    grid[axis] = size / side;
  }
  return grid;
}

torch::Tensor WanImpl::patches(const torch::Tensor& video) {
  const WanConfig& c = config_;
  const VideoGrid g = grid_of(video);
  const torch::Tensor cut =
      video.reshape({video.size(0), c.channels, g[0], c.patch[0], g[1], c.patch[1], g[2], c.patch[2]})
          .permute({0, 2, 4, 6, 1, 3, 5, 7})
          .reshape({video.size(0), tokens_in(g), -1});
  return apply_linear(cut.to(patch_weight_.scalar_type()), patch_weight_.flatten(1), patch_bias_);
}

torch::Tensor WanImpl::unpatched(const torch::Tensor& tokens, const VideoGrid& g) const {
  const WanConfig& c = config_;
  return tokens.reshape({tokens.size(0), g[0], g[1], g[2], c.patch[0], c.patch[1], c.patch[2], c.out_channels})
      .permute({0, 7, 1, 4, 2, 5, 3, 6})
      .reshape({tokens.size(0), c.out_channels, g[0] * c.patch[0], g[1] * c.patch[1], g[2] * c.patch[2]});
}

torch::Tensor WanImpl::embed_text(const torch::Tensor& given) {
  const WanConfig& c = config_;
  if (words_.defined()) {
    if (given.dim() != 2 || given.size(1) > c.text_tokens || given.scalar_type() != torch::kLong)
      fail(kWanEntry, ": captions have shape ", c10::str(given.sizes()), ", expected numbers of words [B, up to ",
           c.text_tokens, "]");
    const torch::Tensor numbers = torch::constant_pad_nd(given, {0, c.text_tokens - given.size(1)});
    const torch::Tensor text = torch::embedding(words_, numbers, /*padding_idx=*/0);
    return apply_linear(text_out_, apply_linear_gelu(text_in_, text));
  }
  if (given.dim() != 3 || given.size(2) != c.text_dim || given.size(1) > c.text_tokens)
    fail(kWanEntry, ": captions have shape ", c10::str(given.sizes()), ", expected [B, up to ", c.text_tokens, ", ",
         c.text_dim, "]");
  torch::Tensor text = given.to(text_in_->weight.scalar_type());
  if (c.pad_text) text = torch::constant_pad_nd(text, {0, 0, 0, c.text_tokens - text.size(1)});
  return apply_linear(text_out_, apply_linear_gelu(text_in_, text));
}

torch::Tensor WanImpl::through(const torch::Tensor& tokens, const std::vector<VideoGrid>& grids,
                               const torch::Tensor& mask, const torch::Tensor& t, const torch::Tensor& text) {
  const WanConfig& c = config_;
  if (t.dim() != 1 || t.size(0) != tokens.size(0) || text.size(0) != tokens.size(0))
    fail(kWanEntry, ": ", tokens.size(0), " videos with ", t.numel(), " times and ", text.size(0),
         " captions, expected as many");
  const torch::ScalarType type = time_in_->weight.scalar_type();
  const torch::ScalarType wide = type == torch::kDouble ? torch::kDouble : torch::kFloat;  // of rows and stream
  const torch::Tensor words = embed_text(text);
  const torch::Tensor features = wan_time_features(t, c.time_channels, c.wide_time).to(type);
  const torch::Tensor time = apply_linear(time_out_, torch::silu(apply_linear(time_in_, features)));
  const torch::Tensor rows = apply_linear(time_rows_, torch::silu(time)).unflatten(1, {6, c.dim}).to(wide);
  ResidualStream stream{tokens.to(wide), {}, {}};
  const bool shared = share_ != nullptr && is_training();
  if (shared) {
    share_->begin(wan_layout(c, grids.front()), tokens.size(1), tokens.device());
    stream.x = share_->part_of(stream.x);
  } else if (share_ != nullptr) {
    share_->end();
  }
  for (WanBlock& block : blocks_) {
    if (!recompute_) {
      stream = block(std::move(stream), rows, words, grids, mask);
      continue;
    }
    const auto body = [&block, grids, mask](const std::vector<torch::Tensor>& in) {
      return block(ResidualStream{in[0], {}, {}}, in[1], in[2], grids, mask).settled();
    };
    stream.x = recomputed(body, {stream.x, rows, words});
  }
  const std::vector<torch::Tensor> m = (head_rows_.to(wide) + time.to(wide).unsqueeze(1)).chunk(2, 1);
  const torch::Tensor out = apply_linear(head_, stream.norm(m[0], m[1], c.eps, branch_type(head_)));
  return shared ? share_->whole_of(out) : out;
}

torch::Tensor WanImpl::forward(const torch::Tensor& x, const torch::Tensor& t, const torch::Tensor& text) {
  const VideoGrid grid = grid_of(x);
  return unpatched(through(patches(x), {grid}, {}, t, text), grid);
}

std::vector<torch::Tensor> WanImpl::forward(const std::vector<torch::Tensor>& videos, const torch::Tensor& t,
                                            const torch::Tensor& text) {
  std::vector<torch::Tensor> results;
  const auto count = static_cast<std::int64_t>(videos.size());
  if (t.dim() != 1 || t.size(0) != count || text.size(0) != count)
    fail(kWanEntry, ": ", count, " videos with ", t.numel(), " times and ", text.size(0),
         " captions, expected as many");
  if (config_.attention != "softmax") {
    for (std::int64_t b = 0; b < count; ++b)
      results.push_back(
          forward(videos[static_cast<std::size_t>(b)].unsqueeze(0), t.narrow(0, b, 1), text.narrow(0, b, 1))
              .squeeze(0));
    return results;
  }
  std::vector<VideoGrid> grids;
  std::int64_t longest = 0;
  for (const torch::Tensor& video : videos) {
    grids.push_back(grid_of(video.unsqueeze(0)));
    longest = std::max(longest, tokens_in(grids.back()));
  }
  std::vector<torch::Tensor> rows;
  const torch::Tensor mask = torch::zeros({count, 1, longest, longest}, t.options().dtype(torch::kBool));
  for (std::size_t b = 0; b < videos.size(); ++b) {
    const torch::Tensor tokens = patches(videos[b].unsqueeze(0));
    rows.push_back(torch::constant_pad_nd(tokens, {0, 0, 0, longest - tokens.size(1)}));
    mask[static_cast<std::int64_t>(b)].narrow(-1, 0, tokens.size(1)).fill_(true);
  }
  if (grids.size() == 1) return {unpatched(through(torch::cat(rows), grids, {}, t, text), grids[0]).squeeze(0)};
  const torch::Tensor out = through(torch::cat(rows), grids, mask, t, text);
  for (std::size_t b = 0; b < videos.size(); ++b) {
    const torch::Tensor own = out.narrow(0, static_cast<std::int64_t>(b), 1).narrow(1, 0, tokens_in(grids[b]));
    results.push_back(unpatched(own, grids[b]).squeeze(0));
  }
  return results;
}

torch::Tensor WanImpl::denoise(const torch::Tensor& x, const torch::Tensor& t, const Conditioning& condition) {
  if (!condition.captions.defined())
    fail(kWanEntry, ": the conditioning has no captions, expected [B, T, ", config_.text_dim, "]");
  return forward(x, t, condition.captions);
}

Conditioning WanImpl::unconditional(const Conditioning& condition) const {
  if (words_.defined() && condition.captions.defined()) {
    Conditioning null = condition;
    null.captions = torch::zeros_like(condition.captions);
    null.captions.select(1, 0).fill_(1);
    return null;
  }
  fail(kWanEntry,
       ": guidance without a negative conditioning, expected the text encoder's states of \"\" or of a negative "
       "caption");
}

void WanImpl::constrain() {
  for (WanBlock& block : blocks_) block->attention().ptr()->constrain();
}

}  // namespace mhla
