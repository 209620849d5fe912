// The causal autoencoder of Wan2.1: videos [B, 3, T, H, W] in [-1, 1] to latents [B, z, 1 + (T - 1) / 4, H / 8, W / 8]
// and back. It streams in time: an image first, then four frames, or one latent, at a time, so that memory does not
// grow with the length. Every convolution keeps the last two frames it has seen; before the first there are zeros.
//   norm(x) = x / max(|x|, 1e-12) sqrt(C) gamma, over channels
//   down in time: the first frame passes, then out_k = conv(f_2k-2, f_2k-1, f_2k)
//   up in time: the first frame passes and is not in the history; the others become two
// Pixels and latents are as the network has them; encode() and decode() take normalised latents, (mean - mu) / sigma.
#pragma once

#include <array>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "mhla/io/fields.h"
#include "mhla/models/model_size.h"
#include "mhla/modules/weight_names.h"

namespace mhla {

struct WanVaeConfig {  // the defaults are Wan2.1's; names of diffusers' config.json
  std::int64_t base_dim = 96, z_dim = 16;
  std::vector<std::int64_t> dim_mult{1, 2, 4, 4};
  std::int64_t num_res_blocks = 2;
  std::vector<bool> temperal_downsample{false, true, true};  // spelled as published
  std::vector<double> latents_mean{-0.7571, -0.7089, -0.9113, 0.1075,  -0.1745, 0.9653,  -0.1517, 1.5508,
                                   0.4134,  -0.0715, 0.5517,  -0.3632, -0.1922, -0.9497, 0.2503,  -0.2921};
  std::vector<double> latents_std{2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743,
                                  3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160};
  bool operator==(const WanVaeConfig&) const = default;

  [[nodiscard]] std::int64_t space_factor() const;  // pixels of a latent's side: 8
  [[nodiscard]] std::int64_t time_factor() const;   // frames of a latent but the first: 4
};
void check(const WanVaeConfig& config);
// diffusers' ("AutoencoderKLWan") or, with `dim`, the original's.
WanVaeConfig parse_wan_vae_config(const JsonValue& object, const std::string& label);
JsonValue wan_vae_json(const WanVaeConfig& config);

// A sample is one latent of a stream, decoded to `rows` x `columns` pixels: what convolutions remember is in `passing`.
ModelSize size_of(const WanVaeConfig& config, std::int64_t rows, std::int64_t columns);

// Sides of a tile and steps between them in pixels, rows and columns; tiles overlap by the rest and are blended.
struct WanVaeTiles {
  std::array<std::int64_t, 2> size{256, 256}, stride{192, 192};
};

// How frames lie while they are computed; the same numbers up to rounding. kPlain is [B, C, T, H, W]. The others are
// for one video without gradients, as GPUs want it: channels next to each other, with convolutions over three frames,
// or over images that have the channels of three frames.
enum class WanVaeFrames : std::uint8_t { kPlain, kRows, kImages };

class WanEncoderImpl;
class WanDecoderImpl;
namespace wan_vae {
class Conv;
}

class WanVaeImpl : public torch::nn::Module {
 public:
  explicit WanVaeImpl(const WanVaeConfig& config);
  ~WanVaeImpl() override;

  struct Moments {
    torch::Tensor mean, logvar;  // [B, z, frames, rows, columns]
  };
  // Frames behind the last 1 + 4 n are refused unless `drop_rest`, as published.
  Moments moments(const torch::Tensor& video, bool drop_rest = false);
  torch::Tensor encode(const torch::Tensor& video) { return normalized(moments(video).mean); }
  torch::Tensor decode(const torch::Tensor& latents);
  torch::Tensor decode_raw(const torch::Tensor& z);  // of latents that are not normalised
  // The frames of each latent as they come, [B, 3, 1 or 4, rows, columns]: memory does not grow with the length.
  using TakeFrames = std::function<void(const torch::Tensor& frames)>;
  void decode_each(const torch::Tensor& latents, const TakeFrames& take);

  // The same in tiles of space, each streamed by itself: for videos that do not fit.
  torch::Tensor mean_tiled(const torch::Tensor& video, const WanVaeTiles& tiles);
  torch::Tensor decode_raw_tiled(const torch::Tensor& z, const WanVaeTiles& tiles);

  [[nodiscard]] torch::Tensor normalized(const torch::Tensor& z) const;
  [[nodiscard]] torch::Tensor denormalized(const torch::Tensor& latents) const;
  [[nodiscard]] const WanVaeConfig& config() const { return config_; }
  void use_frames(WanVaeFrames frames) { frames_ = frames; }  // default: by device and cuDNN

 private:
  [[nodiscard]] WanVaeFrames frames_of(const torch::Tensor& x) const;
  void expect_latents(const torch::Tensor& z) const;
  void decode_raw_each(const torch::Tensor& z, const TakeFrames& take);
  [[nodiscard]] torch::Tensor row(const std::vector<double>& values, const torch::Tensor& like) const;

  WanVaeConfig config_;
  std::optional<WanVaeFrames> frames_;
  std::shared_ptr<WanEncoderImpl> encoder_;
  std::shared_ptr<WanDecoderImpl> decoder_;
  std::shared_ptr<wan_vae::Conv> quant_conv_, post_quant_conv_;
};
TORCH_MODULE(WanVae);

enum class WanVaeNames : std::uint8_t { kDiffusers, kOriginal };

Weights to_published(const WanVaeImpl& model, const Weights& ours, WanVaeNames names);  // weights, or their gradients
void load_published(WanVaeImpl& model, const Weights& published);                       // in either naming

// A folder with config.json and weights in one file or shards, in either naming.
WanVae load_wan_vae(const std::filesystem::path& folder, torch::ScalarType dtype = torch::kFloat);
void save_wan_vae(const WanVaeImpl& model, const std::filesystem::path& folder,
                  WanVaeNames names = WanVaeNames::kDiffusers);

}  // namespace mhla
