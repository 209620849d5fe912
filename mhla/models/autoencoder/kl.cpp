#include "mhla/models/autoencoder/kl.h"

#include <cmath>

#include "mhla/models/grid_parts.h"
#include "mhla/models/image_parts.h"
#include "mhla/modules/exact.h"
#include "mhla/ops/torch.h"

namespace mhla {
namespace {

constexpr std::int64_t kScores = std::int64_t{1} << 26;  // query-key pairs at a time without gradients: 256 MiB

torch::nn::GroupNorm group_norm(const KlConfig& c, std::int64_t channels) {
  return torch::nn::GroupNorm(torch::nn::GroupNormOptions(c.norm_num_groups, channels).eps(c.norm_eps));
}

}  // namespace

class KlResBlockImpl : public torch::nn::Module {
 public:
  KlResBlockImpl(const KlConfig& c, std::int64_t in, std::int64_t out)
      : norm1_(register_module("norm1", group_norm(c, in))),
        conv1_(register_module("conv1", conv(in, out, 3))),
        norm2_(register_module("norm2", group_norm(c, out))),
        conv2_(register_module("conv2", conv(out, out, 3))) {
    if (in != out) shortcut_ = register_module("conv_shortcut", conv(in, out, 1));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor h = conv2_(torch::silu(norm2_(conv1_(torch::silu(norm1_(x))))));
    return h + (shortcut_.is_empty() ? x : shortcut_(x));
  }

 private:
  torch::nn::GroupNorm norm1_;
  torch::nn::Conv2d conv1_;
  torch::nn::GroupNorm norm2_;
  torch::nn::Conv2d conv2_;
  torch::nn::Conv2d shortcut_{nullptr};
};
TORCH_MODULE(KlResBlock);

// x + out(attention over all places, one head), biases everywhere.
class KlAttentionImpl : public torch::nn::Module {
 public:
  KlAttentionImpl(const KlConfig& c, std::int64_t channels)
      : norm_(register_module("group_norm", group_norm(c, channels))),
        q_(register_module("to_q", torch::nn::Linear(channels, channels))),
        k_(register_module("to_k", torch::nn::Linear(channels, channels))),
        v_(register_module("to_v", torch::nn::Linear(channels, channels))),
        out_(add_folder(*this, "to_out")->register_module("0", torch::nn::Linear(channels, channels))) {}

  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor tokens = norm_(x).flatten(2).transpose(1, 2);  // [B, N, C]
    const auto headed = [&](torch::nn::Linear& layer) { return apply_linear(layer, tokens).unsqueeze(1); };
    const torch::Tensor q = headed(q_), k = headed(k_), v = headed(v_);
    const std::int64_t N = tokens.size(1);
    std::vector<torch::Tensor> parts;  // some queries at a time, so that memory does not grow with N^2
    const std::int64_t piece = torch::GradMode::is_enabled() ? N : std::max<std::int64_t>(1, kScores / N);
    for (std::int64_t i = 0; i < N; i += piece)
      parts.push_back(ops::softmax_attention(q.narrow(2, i, std::min(piece, N - i)), k, v, /*causal=*/false));
    const torch::Tensor out = apply_linear(out_, torch::cat(parts, 2).squeeze(1));
    return x + out.transpose(1, 2).reshape(x.sizes());
  }

 private:
  torch::nn::GroupNorm norm_;
  torch::nn::Linear q_, k_, v_, out_;
};
TORCH_MODULE(KlAttention);

class KlMiddleImpl : public torch::nn::Module {
 public:
  KlMiddleImpl(const KlConfig& c, std::int64_t channels) {
    if (c.mid_block_add_attention)
      attention_ = add_folder(*this, "attentions")->register_module("0", KlAttention(c, channels));
    const auto resnets = add_folder(*this, "resnets");
    first_ = resnets->register_module("0", KlResBlock(c, channels, channels));
    second_ = resnets->register_module("1", KlResBlock(c, channels, channels));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = first_(x);
    if (!attention_.is_empty()) x = attention_(x);
    return second_(x);
  }

 private:
  KlAttention attention_{nullptr};
  KlResBlock first_{nullptr}, second_{nullptr};
};
TORCH_MODULE(KlMiddle);

// Residual blocks of one resolution, and the convolution that leaves it.
class KlLevelImpl : public torch::nn::Module {
 public:
  KlLevelImpl(const KlConfig& c, std::int64_t in, std::int64_t out, std::int64_t layers, const char* sampler)
      : down_(sampler != nullptr && std::string(sampler) == "downsamplers") {
    const auto resnets = add_folder(*this, "resnets");
    for (std::int64_t i = 0; i < layers; ++i)
      blocks_.push_back(resnets->register_module(std::to_string(i), KlResBlock(c, i == 0 ? in : out, out)));
    if (sampler == nullptr) return;
    const torch::nn::Conv2dOptions how = torch::nn::Conv2dOptions(out, out, 3).stride(down_ ? 2 : 1).padding(!down_);
    sampler_ = add_folder(*add_folder(*this, sampler), "0")->register_module("conv", torch::nn::Conv2d(how));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (KlResBlock& block : blocks_) x = block(x);
    if (sampler_.is_empty()) return x;
    if (down_) return sampler_(torch::constant_pad_nd(x, {0, 1, 0, 1}));
    const std::vector<std::int64_t> size{2 * x.size(2), 2 * x.size(3)};
    return sampler_(torch::upsample_nearest2d(x, size));
  }

 private:
  bool down_;
  std::vector<KlResBlock> blocks_;
  torch::nn::Conv2d sampler_{nullptr};
};
TORCH_MODULE(KlLevel);

class KlEncoderImpl : public torch::nn::Module {
 public:
  explicit KlEncoderImpl(const KlConfig& c) {
    const std::vector<std::int64_t>& widths = c.block_out_channels;
    in_ = register_module("conv_in", conv(c.in_channels, widths[0], 3));
    const auto levels = add_folder(*this, "down_blocks");
    for (std::size_t i = 0; i < widths.size(); ++i)
      levels_.push_back(levels->register_module(std::to_string(i),
                                                KlLevel(c, widths[i == 0 ? 0 : i - 1], widths[i], c.layers_per_block,
                                                        i + 1 < widths.size() ? "downsamplers" : nullptr)));
    middle_ = register_module("mid_block", KlMiddle(c, widths.back()));
    norm_ = register_module("conv_norm_out", group_norm(c, widths.back()));
    out_ = register_module("conv_out", conv(widths.back(), 2 * c.latent_channels, 3));
  }
  torch::Tensor forward(const torch::Tensor& images) {
    torch::Tensor x = in_(images);
    for (KlLevel& level : levels_) x = level(x);
    return out_(torch::silu(norm_(middle_(x))));
  }

 private:
  torch::nn::Conv2d in_{nullptr}, out_{nullptr};
  std::vector<KlLevel> levels_;
  KlMiddle middle_{nullptr};
  torch::nn::GroupNorm norm_{nullptr};
};

class KlDecoderImpl : public torch::nn::Module {
 public:
  explicit KlDecoderImpl(const KlConfig& c) {
    const std::vector<std::int64_t> widths(c.block_out_channels.rbegin(), c.block_out_channels.rend());
    in_ = register_module("conv_in", conv(c.latent_channels, widths[0], 3));
    middle_ = register_module("mid_block", KlMiddle(c, widths[0]));
    const auto levels = add_folder(*this, "up_blocks");
    for (std::size_t i = 0; i < widths.size(); ++i)
      levels_.push_back(levels->register_module(
          std::to_string(i), KlLevel(c, widths[i == 0 ? 0 : i - 1], widths[i], c.layers_per_block + 1,
                                     i + 1 < widths.size() ? "upsamplers" : nullptr)));
    norm_ = register_module("conv_norm_out", group_norm(c, widths.back()));
    out_ = register_module("conv_out", conv(widths.back(), c.out_channels, 3));
  }
  torch::Tensor forward(const torch::Tensor& latents) {
    torch::Tensor x = middle_(in_(latents));
    for (KlLevel& level : levels_) x = level(x);
    return out_(torch::silu(norm_(x)));
  }

 private:
  torch::nn::Conv2d in_{nullptr}, out_{nullptr};
  KlMiddle middle_{nullptr};
  std::vector<KlLevel> levels_;
  torch::nn::GroupNorm norm_{nullptr};
};

KlAutoencoderImpl::KlAutoencoderImpl(const KlConfig& c) : Autoencoder(c) {
  check(c);
  encoder_ = register_module("encoder", std::make_shared<KlEncoderImpl>(c));
  decoder_ = register_module("decoder", std::make_shared<KlDecoderImpl>(c));
  const std::int64_t latent = c.latent_channels;
  if (c.use_quant_conv) quant_ = register_module("quant_conv", conv(2 * latent, 2 * latent, 1));
  if (c.use_post_quant_conv) post_quant_ = register_module("post_quant_conv", conv(latent, latent, 1));
}

torch::Tensor KlAutoencoderImpl::encode_tile(const torch::Tensor& images) {
  const torch::Tensor moments = encoder_->forward(images);
  return quant_.is_empty() ? moments : quant_(moments);
}

torch::Tensor KlAutoencoderImpl::decode_tile(const torch::Tensor& latents) {
  return decoder_->forward(post_quant_.is_empty() ? latents : post_quant_(latents));
}

}  // namespace mhla
