// An autoencoder of images: [B, 3, rows, columns] in [-1, 1] to latents and back. What samples, encodes data sets or
// trains over latents knows this header alone.
#pragma once

#include <functional>
#include <memory>

#include "mhla/models/autoencoder/autoencoder_config.h"
#include "mhla/modules/weight_names.h"

namespace mhla {

// Images are cut into tiles of `size` pixels, one every `stride`, and what overlaps is blended linearly: memory for the
// network is that of one tile.
struct Tiling {
  std::int64_t size = 512, stride = 448;
};

// The encoder's answer, before latents are scaled.
struct Posterior {
  torch::Tensor mean;    // [B, c, rows, columns]
  torch::Tensor logvar;  // the same, clamped to [-30, 20]; undefined where the encoder has no variance
  [[nodiscard]] torch::Tensor std() const { return (0.5 * logvar).exp(); }
};

class Autoencoder : public torch::nn::Module {
 public:
  explicit Autoencoder(AutoencoderConfig config) : config_(std::move(config)) {}

  // (mean - shift) * scale, or with `noise` [B, c, ...] a sample; DC-AE has no variance and takes none.
  torch::Tensor encode(const torch::Tensor& images, const torch::Tensor& noise = {});
  torch::Tensor decode(const torch::Tensor& latents);  // of encode()
  // The same without scale and shift, as diffusers' encode() and decode().
  Posterior posterior(const torch::Tensor& images);
  torch::Tensor decode_unscaled(const torch::Tensor& latents);

  [[nodiscard]] const AutoencoderConfig& config() const { return config_; }
  [[nodiscard]] std::int64_t image_channels() const;
  [[nodiscard]] std::int64_t channels() const;                                          // of a latent
  [[nodiscard]] std::int64_t downsampling() const { return downsampling_of(config_); }  // pixels of its side
  [[nodiscard]] double scale() const;
  [[nodiscard]] double shift() const;
  [[nodiscard]] torch::ScalarType dtype() const { return parameters()[0].scalar_type(); }  // of the results, too

  // Images that are larger than a tile are cut; without a value none is. The size is a multiple of downsampling(), the
  // stride too and at least half of it.
  void set_tiling(std::optional<Tiling> tiling);
  [[nodiscard]] virtual Tiling usual_tiling() const = 0;  // as published: a quarter overlaps (KL), an eighth (DC-AE)

 protected:
  virtual torch::Tensor encode_tile(const torch::Tensor& images) = 0;   // KL: mean and log variance, [B, 2 c, ...]
  virtual torch::Tensor decode_tile(const torch::Tensor& latents) = 0;  // unscaled

 private:
  AutoencoderConfig config_;
  std::optional<Tiling> tiling_;
};
using AnyAutoencoder = std::shared_ptr<Autoencoder>;

AnyAutoencoder make_autoencoder(const AutoencoderConfig& config);  // random weights from LibTorch's generator

// ---- Weights under published names

enum class AutoencoderNames : std::uint8_t {
  kDiffusers,  // those of our parameters
  kOriginal,   // LDM's for KL, mit-han-lab's for DC-AE
};
// Any tensors by our names: weights or their gradients.
Weights to_published(const AutoencoderConfig& config, const Weights& ours, AutoencoderNames names);
// By any of the names, also those of diffusers' attention before 2023 (query, key, value, proj_attn), and from a file
// of a whole Stable Diffusion (`first_stage_model.`), whose other tensors are passed over. What does not fit is refused
// with the lists of what is missing and what is left over, and nothing changes.
void load_published(Autoencoder& model, const Weights& published);

// A folder with config.json and weights in one file or shards, in any of the names. `dtype` is what the model gets.
AnyAutoencoder load_autoencoder(const std::filesystem::path& folder, torch::ScalarType dtype = torch::kFloat);
void save_autoencoder(const Autoencoder& model, const std::filesystem::path& folder,
                      AutoencoderNames names = AutoencoderNames::kDiffusers, double shard_bytes = 5e9);

// A network applied to tiles of x. `in` and `out`: sides of a tile of x and of its result, every `in_stride` and
// `out_stride`; weights of the overlapping parts run from 0 to 1 and sum to 1.
struct TileGrid {
  std::int64_t in = 0, in_stride = 0, out = 0, out_stride = 0;
};
torch::Tensor in_tiles(const torch::Tensor& x, const TileGrid& grid,
                       const std::function<torch::Tensor(const torch::Tensor&)>& network);

}  // namespace mhla
