#include "mhla/models/autoencoder/dc.h"

#include "mhla/models/image_parts.h"

namespace mhla {
namespace {

constexpr std::int64_t kGluRatio = 4;

torch::nn::Linear plain_linear(std::int64_t in, std::int64_t out) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false));
}

// A linear layer over the channels of [B, C, rows, columns].
torch::Tensor over_channels(const torch::nn::Linear& layer, const torch::Tensor& x) {
  return torch::conv2d(x, layer->weight.unsqueeze(-1).unsqueeze(-1));
}

// Mean of groups of consecutive channels, down to `channels`.
torch::Tensor mean_of_groups(const torch::Tensor& x, std::int64_t channels) {
  return x.unflatten(1, {channels, -1}).mean(2);
}

}  // namespace

// A part of a level.
class DcPart : public torch::nn::Module {
 public:
  virtual torch::Tensor forward(const torch::Tensor& x) = 0;
};

class DcResBlockImpl : public DcPart {
 public:
  DcResBlockImpl(const DcConfig& c, std::int64_t channels)
      : conv1_(register_module("conv1", conv(channels, channels, 3))),
        conv2_(register_module("conv2", conv(channels, channels, 3, 1, false))),
        norm_(register_module("norm", ChannelNorm(channels, c.norm_eps))) {}
  torch::Tensor forward(const torch::Tensor& x) override { return x + norm_(conv2_(torch::silu(conv1_(x)))); }

 private:
  torch::nn::Conv2d conv1_, conv2_;
  ChannelNorm norm_;
};

class DcAttentionImpl : public torch::nn::Module {
 public:
  DcAttentionImpl(const DcConfig& c, std::int64_t channels, const std::vector<std::int64_t>& kernels)
      : head_(c.attention_head_dim), eps_(c.attention_eps) {
    q_ = register_module("to_q", plain_linear(channels, channels));
    k_ = register_module("to_k", plain_linear(channels, channels));
    v_ = register_module("to_v", plain_linear(channels, channels));
    const auto scales = register_module("to_qkv_multiscale", std::make_shared<torch::nn::Module>());
    for (std::size_t i = 0; i < kernels.size(); ++i) {
      const auto scale = scales->register_module(std::to_string(i), std::make_shared<torch::nn::Module>());
      const std::int64_t wide = 3 * channels, groups = 3 * (channels / head_);
      scales_.emplace_back(scale->register_module("proj_in", conv(wide, wide, kernels[i], 1, false, wide)),
                           scale->register_module("proj_out", conv(wide, wide, 1, 1, false, groups)));
    }
    out_ =
        register_module("to_out", plain_linear(channels * (1 + static_cast<std::int64_t>(kernels.size())), channels));
    norm_ = register_module("norm_out", ChannelNorm(channels, c.norm_eps));
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor qkv = torch::cat({over_channels(q_, x), over_channels(k_, x), over_channels(v_, x)}, 1);
    std::vector<torch::Tensor> scales{qkv};
    for (auto& [in, out] : scales_) scales.push_back(out(in(qkv)));
    const std::int64_t N = x.size(2) * x.size(3);
    const bool narrow = x.scalar_type() == torch::kBFloat16 || x.scalar_type() == torch::kHalf;
    torch::Tensor all = torch::cat(scales, 1).reshape({x.size(0), -1, 3 * head_, N});  // [B, H, 3 D, N]
    if (narrow) all = all.to(torch::kFloat);
    const std::vector<torch::Tensor> parts = all.chunk(3, 2);
    const torch::Tensor q = parts[0].relu(), k = parts[1].relu();  // [B, H, D, N]
    const torch::Tensor& v = parts[2];
    torch::Tensor out;
    if (N > head_) {
      const torch::Tensor S = torch::matmul(v, k.transpose(-1, -2));       // [B, H, D, D]
      const torch::Tensor den = torch::matmul(k.sum(-1).unsqueeze(2), q);  // [B, H, 1, N]
      out = torch::matmul(S, q) / (den + eps_);
    } else {  // fewer numbers as pairs
      const torch::Tensor pairs = torch::matmul(k.transpose(-1, -2), q);
      out = torch::matmul(v, pairs / (pairs.sum(2, /*keepdim=*/true) + eps_));
    }
    out = out.reshape({x.size(0), -1, x.size(2), x.size(3)}).to(x.scalar_type());
    return x + norm_(over_channels(out_, out));
  }

 private:
  std::int64_t head_;
  double eps_;
  torch::nn::Linear q_{nullptr}, k_{nullptr}, v_{nullptr}, out_{nullptr};
  std::vector<std::pair<torch::nn::Conv2d, torch::nn::Conv2d>> scales_;
  ChannelNorm norm_{nullptr};
};
TORCH_MODULE(DcAttention);

class DcVitBlockImpl : public DcPart {
 public:
  DcVitBlockImpl(const DcConfig& c, std::int64_t channels, const std::vector<std::int64_t>& kernels)
      : attention_(register_module("attn", DcAttention(c, channels, kernels))),
        feed_(register_module("conv_out", GluConv(channels, kGluRatio * channels, c.norm_eps))) {}
  torch::Tensor forward(const torch::Tensor& x) override {
    const torch::Tensor y = attention_(x);
    return y + feed_(y);
  }

 private:
  DcAttention attention_;
  GluConv feed_;
};

class DcDownImpl : public DcPart {
 public:
  DcDownImpl(const DcConfig& c, std::int64_t in, std::int64_t out)
      : unshuffle_(c.downsample_block_type == "pixel_unshuffle"),
        out_(out),
        conv_(register_module("conv", conv(in, unshuffle_ ? out / 4 : out, 3, unshuffle_ ? 1 : 2))) {}
  torch::Tensor forward(const torch::Tensor& x) override {
    const torch::Tensor y = conv_(x);
    return (unshuffle_ ? torch::pixel_unshuffle(y, 2) : y) + mean_of_groups(torch::pixel_unshuffle(x, 2), out_);
  }

 private:
  bool unshuffle_;
  std::int64_t out_;
  torch::nn::Conv2d conv_;
};

class DcUpImpl : public DcPart {
 public:
  DcUpImpl(const DcConfig& c, std::int64_t in, std::int64_t out)
      : shuffle_(c.upsample_block_type == "pixel_shuffle"),
        repeats_(4 * out / in),
        conv_(register_module("conv", conv(in, shuffle_ ? 4 * out : out, 3))) {}
  torch::Tensor forward(const torch::Tensor& x) override {
    const std::vector<std::int64_t> size{2 * x.size(2), 2 * x.size(3)};
    const torch::Tensor y = shuffle_ ? torch::pixel_shuffle(conv_(x), 2) : conv_(torch::upsample_nearest2d(x, size));
    return y + torch::pixel_shuffle(x.repeat_interleave(repeats_, 1), 2);
  }

 private:
  bool shuffle_;
  std::int64_t repeats_;
  torch::nn::Conv2d conv_;
};

namespace {

// Parts of a level, registered as "0", "1", ...
class Level {
 public:
  Level(torch::nn::Module& levels, std::size_t index)
      : folder_(levels.register_module(std::to_string(index), std::make_shared<torch::nn::Module>())) {}
  void add(std::shared_ptr<DcPart> part) {
    folder_->register_module(std::to_string(parts_.size()), part);
    parts_.push_back(std::move(part));
  }
  void add_blocks(const DcConfig& c, const std::string& type, std::int64_t channels, std::int64_t count,
                  const std::vector<std::int64_t>& kernels) {
    for (std::int64_t i = 0; i < count; ++i) {
      if (type == "ResBlock")
        add(std::make_shared<DcResBlockImpl>(c, channels));
      else
        add(std::make_shared<DcVitBlockImpl>(c, channels, kernels));
    }
  }
  torch::Tensor forward(torch::Tensor x) const {
    for (const std::shared_ptr<DcPart>& part : parts_) x = part->forward(x);
    return x;
  }

 private:
  std::shared_ptr<torch::nn::Module> folder_;
  std::vector<std::shared_ptr<DcPart>> parts_;
};

}  // namespace

class DcEncoderImpl : public torch::nn::Module {
 public:
  explicit DcEncoderImpl(const DcConfig& c) : latent_(c.latent_channels), shortcut_(c.encoder_out_shortcut) {
    const std::vector<std::int64_t>& widths = c.encoder_block_out_channels;
    in_ = register_module("conv_in", conv(c.in_channels, widths[0], 3));
    const auto levels = register_module("down_blocks", std::make_shared<torch::nn::Module>());
    for (std::size_t i = 0; i < widths.size(); ++i) {
      Level& level = levels_.emplace_back(*levels, i);
      level.add_blocks(c, c.encoder_block_types[i], widths[i], c.encoder_layers_per_block[i],
                       c.encoder_qkv_multiscales[i]);
      if (i + 1 < widths.size()) level.add(std::make_shared<DcDownImpl>(c, widths[i], widths[i + 1]));
    }
    out_ = register_module("conv_out", conv(widths.back(), latent_, 3));
  }
  torch::Tensor forward(const torch::Tensor& images) {
    torch::Tensor x = in_(images);
    for (const Level& level : levels_) x = level.forward(x);
    const torch::Tensor latents = out_(x);
    return shortcut_ ? latents + mean_of_groups(x, latent_) : latents;
  }

 private:
  std::int64_t latent_;
  bool shortcut_;
  torch::nn::Conv2d in_{nullptr}, out_{nullptr};
  std::vector<Level> levels_;
};

class DcDecoderImpl : public torch::nn::Module {
 public:
  explicit DcDecoderImpl(const DcConfig& c)
      : repeats_(c.decoder_in_shortcut ? c.decoder_block_out_channels.back() / c.latent_channels : 0) {
    const std::vector<std::int64_t>& widths = c.decoder_block_out_channels;
    in_ = register_module("conv_in", conv(c.latent_channels, widths.back(), 3));
    const auto levels = register_module("up_blocks", std::make_shared<torch::nn::Module>());
    for (std::size_t i = 0; i < widths.size(); ++i) {  // numbered from the finest, run from the coarsest
      Level& level = levels_.emplace_back(*levels, i);
      if (i + 1 < widths.size()) level.add(std::make_shared<DcUpImpl>(c, widths[i + 1], widths[i]));
      level.add_blocks(c, c.decoder_block_types[i], widths[i], c.decoder_layers_per_block[i],
                       c.decoder_qkv_multiscales[i]);
    }
    norm_ = register_module("norm_out", ChannelNorm(widths[0], c.norm_eps));
    out_ = register_module("conv_out", conv(widths[0], c.in_channels, 3));
  }
  torch::Tensor forward(const torch::Tensor& latents) {
    torch::Tensor x = in_(latents);
    if (repeats_ != 0) x = x + latents.repeat_interleave(repeats_, 1);
    for (auto level = levels_.rbegin(); level != levels_.rend(); ++level) x = level->forward(x);
    return out_(norm_(x).relu());
  }

 private:
  std::int64_t repeats_;
  torch::nn::Conv2d in_{nullptr}, out_{nullptr};
  std::vector<Level> levels_;
  ChannelNorm norm_{nullptr};
};

DcAutoencoderImpl::DcAutoencoderImpl(const DcConfig& c) : Autoencoder(c) {
  check(c);
  encoder_ = register_module("encoder", std::make_shared<DcEncoderImpl>(c));
  decoder_ = register_module("decoder", std::make_shared<DcDecoderImpl>(c));
}

torch::Tensor DcAutoencoderImpl::encode_tile(const torch::Tensor& images) { return encoder_->forward(images); }
torch::Tensor DcAutoencoderImpl::decode_tile(const torch::Tensor& latents) { return decoder_->forward(latents); }

}  // namespace mhla
