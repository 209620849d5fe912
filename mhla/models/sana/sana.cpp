#include "mhla/models/sana/sana.h"

#include <cmath>

#include "mhla/core/error.h"
#include "mhla/kernels/mixing/mixing.h"
#include "mhla/models/grid_parts.h"
#include "mhla/modules/exact.h"
#include "mhla/modules/feature_maps.h"
#include "mhla/ops/ops.h"
#include "mhla/ops/tensor_view.h"

namespace mhla {
namespace {

constexpr const char* kSanaEntry = "Sana";
constexpr std::int64_t kFrequencies = 128;
constexpr double kCaptionGain = 0.01;  // initial gain of the captions' norm

torch::nn::Linear linear(std::int64_t in, std::int64_t out, bool bias = true) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(bias));
}

// LayerNorm without weights, then x (1 + scale) + shift.
torch::Tensor modulated(const torch::Tensor& x, const torch::Tensor& shift, const torch::Tensor& scale, double eps) {
  return ops::modulated_norm({x, {}, {}, scale, shift}, eps).second;
}

// [B, 256]: cosines, then sines.
torch::Tensor time_features(const torch::Tensor& t) {
  const torch::Tensor k = torch::arange(kFrequencies, t.options().dtype(torch::kFloat));
  const torch::Tensor angles =
      t.to(torch::kFloat).unsqueeze(1) * torch::exp(k * (-std::log(10000.0) / static_cast<double>(kFrequencies)));
  return torch::cat({angles.cos(), angles.sin()}, 1);
}

}  // namespace

SanaAttentionImpl::SanaAttentionImpl(const SanaConfig& c) : config_(c) {
  qkv_ = register_module("qkv", linear(c.dim, 3 * c.dim, false));
  proj_ = register_module("proj", linear(c.dim, c.dim));
  if (c.qk_norm) {
    q_norm_ = register_module("q_norm", RmsNorm(c.dim, c.qk_norm_eps));
    k_norm_ = register_module("k_norm", RmsNorm(c.dim, c.qk_norm_eps));
  }
  if (c.attention != "mhla") return;
  const BlockGrid grid = BlockGrid::grid2d(c.blocks[0], c.blocks[1]);
  torch::Tensor start = torch::empty({grid.count(), grid.count()});
  MixInit init;
  init.transform = parse_mix_transform(c.mix_init), init.exp_sigma = c.mix_sigma;
  init_mix(init, grid, ops::output_view(start, kSanaEntry, "mix"));
  mix = register_parameter("mix", start, c.learn_mix);
}

std::map<std::string, ParamRole> SanaAttentionImpl::param_roles() const {
  if (!mix.defined()) return {};
  return {{"mix", ParamRole::kMix}};
}

void SanaAttentionImpl::constrain() {
  const torch::NoGradGuard no_gradient;
  if (mix.defined()) mix.clamp_(config_.mix_range[0], config_.mix_range[1]);
}

torch::Tensor SanaAttentionImpl::forward(const torch::Tensor& x, TokenGrid grid) {
  const SanaConfig& c = config_;
  std::vector<torch::Tensor> qkv = apply_linear(qkv_, x).split(c.dim, -1);
  if (c.qk_norm) qkv[0] = q_norm_(qkv[0]), qkv[1] = k_norm_(qkv[1]);
  for (torch::Tensor& part : qkv) part = part.unflatten(-1, {c.dim / c.head_dim, c.head_dim});  // [B, N, H, D]
  if (c.attention == "softmax") {
    const auto heads_first = [](const torch::Tensor& part) { return part.transpose(1, 2); };
    const torch::Tensor out =
        ops::softmax_attention(heads_first(qkv[0]), heads_first(qkv[1]), heads_first(qkv[2]), /*causal=*/false);
    return apply_linear(proj_, out.transpose(1, 2).flatten(-2));
  }
  ops::AttentionInputs inputs;
  inputs.q = qkv[0], inputs.k = qkv[1], inputs.v = qkv[2];
  ops::BidirectionalOptions how;
  how.feature_map = fused_map(parse_features(c.features)), how.normalizer = Normalizer::kPaper, how.eps = c.eps;
  if (c.attention == "mhla") {
    // Rows of a small grid may leave the last blocks empty: then they weigh nothing and are not asked.
    const std::int64_t rows = filled_blocks(grid.rows, c.blocks[0]), columns = filled_blocks(grid.columns, c.blocks[1]);
    how.layout = Layout::grid2d(grid.rows, grid.columns, rows, columns);
    inputs.mix = mix.view({c.blocks[0], c.blocks[1], c.blocks[0], c.blocks[1]})
                     .narrow(0, 0, rows)
                     .narrow(1, 0, columns)
                     .narrow(2, 0, rows)
                     .narrow(3, 0, columns)
                     .reshape({rows * columns, rows * columns});
  } else {
    how.layout = Layout::line(x.size(1));
    inputs.mix =
        torch::ones({1, 1}, x.options().dtype(x.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat));
  }
  return apply_linear(proj_, ops::bidirectional(inputs, how).flatten(-2));
}

SanaCrossAttentionImpl::SanaCrossAttentionImpl(const SanaConfig& c) : heads_(c.cross_heads) {
  q_ = register_module("q_linear", linear(c.dim, c.dim));
  kv_ = register_module("kv_linear", linear(c.dim, 2 * c.dim));
  proj_ = register_module("proj", linear(c.dim, c.dim));
  if (!c.qk_norm) return;
  q_norm_ = register_module("q_norm", RmsNorm(c.dim, c.qk_norm_eps));
  k_norm_ = register_module("k_norm", RmsNorm(c.dim, c.qk_norm_eps));
}

torch::Tensor SanaCrossAttentionImpl::forward(const torch::Tensor& x, const torch::Tensor& captions,
                                              const torch::Tensor& mask) {
  torch::Tensor q = apply_linear(q_, x);
  std::vector<torch::Tensor> kv = apply_linear(kv_, captions).chunk(2, -1);
  if (!q_norm_.is_empty()) q = q_norm_(q), kv[0] = k_norm_(kv[0]);
  const auto headed = [&](const torch::Tensor& y) { return y.unflatten(-1, {heads_, -1}).transpose(1, 2); };
  const torch::Tensor out = ops::softmax_attention(headed(q), headed(kv[0]), headed(kv[1]), /*causal=*/false, mask);
  return apply_linear(proj_, out.transpose(1, 2).flatten(-2));
}

SanaBlockImpl::SanaBlockImpl(const SanaConfig& c)
    : eps_(c.norm_eps),
      attn_(register_module("attn", SanaAttention(c))),
      cross_(register_module("cross_attn", SanaCrossAttention(c))),
      mlp_(register_module("mlp", GluConv(c.dim, static_cast<std::int64_t>(c.mlp_ratio * static_cast<double>(c.dim))))),
      table_(
          register_parameter("scale_shift_table", torch::randn({6, c.dim}) / std::sqrt(static_cast<double>(c.dim)))) {}

torch::Tensor SanaBlockImpl::forward(torch::Tensor x, const torch::Tensor& captions, const torch::Tensor& t,
                                     const torch::Tensor& mask, TokenGrid grid) {
  const std::vector<torch::Tensor> m = (table_ + t).chunk(6, 1);  // [B, 1, C] each
  x = torch::addcmul(x, m[2], attn_(modulated(x, m[0], m[1], eps_), grid));
  x = x + cross_(x, captions, mask);
  const torch::Tensor image = modulated(x, m[3], m[4], eps_).transpose(1, 2).unflatten(-1, {grid.rows, grid.columns});
  return torch::addcmul(x, m[5], mlp_(image).flatten(2).transpose(1, 2));
}

SanaImpl::SanaImpl(const SanaConfig& given) : config_(given) {
  check(config_);
  const SanaConfig& c = config_;
  patches_ = add_folder(*this, "x_embedder")
                 ->register_module(
                     "proj", torch::nn::Conv2d(torch::nn::Conv2dOptions(c.channels, c.dim, c.patch).stride(c.patch)));
  const auto time = add_folder(*add_folder(*this, "t_embedder"), "mlp");
  t_in_ = time->register_module("0", linear(2 * kFrequencies, c.dim));
  t_out_ = time->register_module("2", linear(c.dim, c.dim));
  t_block_ = add_folder(*this, "t_block")->register_module("1", linear(c.dim, 6 * c.dim));
  const auto captions = add_folder(*this, "y_embedder");
  const auto projection = add_folder(*captions, "y_proj");
  y_in_ = projection->register_module("fc1", linear(c.caption_dim, c.dim));
  y_out_ = projection->register_module("fc2", linear(c.dim, c.dim));
  y_embedding = captions->register_buffer(
      "y_embedding", torch::randn({c.caption_tokens, c.caption_dim}) / std::sqrt(static_cast<double>(c.caption_dim)));
  y_norm_ = register_module("attention_y_norm", RmsNorm(c.dim, c.caption_norm_eps));
  const auto blocks = add_folder(*this, "blocks");
  for (std::int64_t i = 0; i < c.depth; ++i)
    blocks_.push_back(blocks->register_module(std::to_string(i), SanaBlock(c)));
  const auto last = add_folder(*this, "final_layer");
  final_ = last->register_module("linear", linear(c.dim, c.patch * c.patch * c.channels));
  final_table_ =
      last->register_parameter("scale_shift_table", torch::randn({2, c.dim}) / std::sqrt(static_cast<double>(c.dim)));
  const torch::NoGradGuard no_gradient;
  for (const auto& item : named_modules("", /*include_self=*/false)) {
    if (auto* layer = item.value()->as<torch::nn::LinearImpl>(); layer != nullptr) {
      torch::nn::init::xavier_uniform_(layer->weight);
      if (layer->bias.defined()) layer->bias.zero_();
    }
  }
  for (torch::nn::Linear* layer : {&t_in_, &t_out_, &t_block_, &y_in_, &y_out_}) (*layer)->weight.normal_(0.0, 0.02);
  final_->weight.zero_();  // starts with a velocity of 0
  y_norm_->weight.fill_(kCaptionGain);
}

torch::Tensor SanaImpl::embed_captions(const torch::Tensor& y) {
  if (y.dim() != 3 || y.size(2) != config_.caption_dim)
    fail(kSanaEntry, ": captions have shape ", c10::str(y.sizes()), ", expected [B, T, ", config_.caption_dim, "]");
  const torch::Tensor inner = ops::tanh_gelu(apply_linear(y_in_, y.to(y_in_->weight.scalar_type())));
  return y_norm_(apply_linear(y_out_, inner));
}

torch::Tensor SanaImpl::forward(const torch::Tensor& x, const torch::Tensor& t, const torch::Tensor& y,
                                const torch::Tensor& mask) {
  const SanaConfig& c = config_;
  const torch::Tensor captions = embed_captions(y);
  if (x.dim() != 4 || x.size(1) != c.channels || x.size(2) % c.patch != 0 || x.size(3) % c.patch != 0)
    fail(kSanaEntry, ": x has shape ", c10::str(x.sizes()), ", expected [B, ", c.channels,
         ", rows, columns], both multiples of ", c.patch);
  const std::int64_t B = x.size(0);
  if (t.dim() != 1 || t.size(0) != B || captions.size(0) != B)
    fail(kSanaEntry, ": ", B, " latents with ", t.numel(), " times and ", captions.size(0),
         " captions, expected as many");
  torch::Tensor seen;  // [B, 1, 1, T]
  if (mask.defined()) {
    if (mask.dim() != 2 || mask.size(0) != B || mask.size(1) != captions.size(1))
      fail(kSanaEntry, ": mask has shape ", c10::str(mask.sizes()), ", expected [", B, ", ", captions.size(1), "]");
    seen = mask != 0;
    seen = seen.logical_or(seen.any(1, /*keepdim=*/true).logical_not()).unsqueeze(1).unsqueeze(1);
  }
  const TokenGrid grid{x.size(2) / c.patch, x.size(3) / c.patch};
  const torch::ScalarType type = t_in_->weight.scalar_type();
  torch::Tensor tokens = patches_(x.to(type)).flatten(2).transpose(1, 2).contiguous();  // [B, N, C]
  const torch::Tensor features = time_features(c.truncate_t && t.is_floating_point() ? t.trunc() : t).to(type);
  const torch::Tensor time = apply_linear(t_out_, torch::silu(apply_linear(t_in_, features)));
  const torch::Tensor rows = apply_linear(t_block_, torch::silu(time)).unflatten(1, {6, c.dim});
  for (SanaBlock& block : blocks_) tokens = block(tokens, captions, rows, seen, grid);
  const std::vector<torch::Tensor> m = (final_table_ + time.unsqueeze(1)).chunk(2, 1);
  tokens = apply_linear(final_, modulated(tokens, m[0], m[1], c.norm_eps));
  return tokens.reshape({B, grid.rows, grid.columns, c.patch, c.patch, c.channels})
      .permute({0, 5, 1, 3, 2, 4})
      .reshape(x.sizes());
}

torch::Tensor SanaImpl::denoise(const torch::Tensor& x, const torch::Tensor& t, const Conditioning& condition) {
  if (!condition.captions.defined())
    fail(kSanaEntry, ": the conditioning has no captions, expected [B, T, ", config_.caption_dim, "]");
  return forward(x, t, condition.captions, condition.captions_mask);
}

Conditioning SanaImpl::unconditional(const Conditioning& /*condition*/) const {
  fail(kSanaEntry,
       ": guidance without a negative conditioning, expected the text encoder's states of \"\" or of a negative "
       "caption");
}

void SanaImpl::constrain() {
  for (SanaBlock& block : blocks_) block->attention().ptr()->constrain();
}

}  // namespace mhla
