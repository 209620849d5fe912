#include "mhla/models/autoencoder/autoencoder.h"

#include "mhla/core/error.h"
#include "mhla/core/labelled.h"
#include "mhla/io/file.h"
#include "mhla/models/autoencoder/dc.h"
#include "mhla/models/autoencoder/kl.h"
#include "mhla/models/weights_folder.h"

namespace mhla {
namespace {

constexpr const char* kAutoencoderEntry = "Autoencoder";
constexpr double kLeastLogvar = -30.0, kMostLogvar = 20.0;

const KlConfig* kl_of(const AutoencoderConfig& config) { return std::get_if<KlConfig>(&config); }

// [count] weights of a tile along an axis: from 0 to 1 over the overlap with the tile before it, from 1 to 0 with the
// one after it.
torch::Tensor ramp(std::int64_t count, std::int64_t overlap, bool before, bool after,
                   const torch::TensorOptions& options) {
  torch::Tensor weights = torch::ones({count}, options);
  if (overlap == 0) return weights;
  const torch::Tensor rising = torch::arange(overlap, options) / static_cast<double>(overlap);
  if (before) weights.narrow(0, 0, overlap).mul_(rising);
  if (after) weights.narrow(0, count - overlap, overlap).mul_(1.0 - rising);
  return weights;
}

// Starts of the tiles along an axis: the last one is the first that reaches the end, so that each is longer than the
// overlap.
std::vector<std::int64_t> tile_starts(std::int64_t length, std::int64_t tile, std::int64_t stride) {
  std::vector<std::int64_t> starts{0};
  while (starts.back() + tile < length) starts.push_back(starts.back() + stride);
  return starts;
}

}  // namespace

torch::Tensor in_tiles(const torch::Tensor& x, const TileGrid& grid,
                       const std::function<torch::Tensor(const torch::Tensor&)>& network) {
  const std::int64_t rows = x.size(2), columns = x.size(3), overlap = grid.out - grid.out_stride;
  const std::vector<std::int64_t> down = tile_starts(rows, grid.in, grid.in_stride),
                                  right = tile_starts(columns, grid.in, grid.in_stride);
  const auto outside = [&](std::int64_t in) { return in / grid.in_stride * grid.out_stride; };  // starts are multiples
  torch::Tensor sum;
  for (std::size_t i = 0; i < down.size(); ++i) {
    for (std::size_t j = 0; j < right.size(); ++j) {
      const torch::Tensor tile = network(x.narrow(2, down[i], std::min(grid.in, rows - down[i]))
                                             .narrow(3, right[j], std::min(grid.in, columns - right[j])));
      if (!sum.defined())
        sum = torch::zeros({x.size(0), tile.size(1), rows * grid.out / grid.in, columns * grid.out / grid.in},
                           tile.options());
      const torch::Tensor weight =
          ramp(tile.size(2), overlap, i > 0, i + 1 < down.size(), tile.options().requires_grad(false)).unsqueeze(1) *
          ramp(tile.size(3), overlap, j > 0, j + 1 < right.size(), tile.options().requires_grad(false));
      sum.narrow(2, outside(down[i]), tile.size(2)).narrow(3, outside(right[j]), tile.size(3)).add_(tile * weight);
    }
  }
  return sum;
}

std::int64_t Autoencoder::image_channels() const {
  const KlConfig* kl = kl_of(config_);
  return kl != nullptr ? kl->in_channels : std::get<DcConfig>(config_).in_channels;
}

std::int64_t Autoencoder::channels() const {
  const KlConfig* kl = kl_of(config_);
  return kl != nullptr ? kl->latent_channels : std::get<DcConfig>(config_).latent_channels;
}

double Autoencoder::scale() const {
  const KlConfig* kl = kl_of(config_);
  return kl != nullptr ? kl->scaling_factor : std::get<DcConfig>(config_).scaling_factor;
}

double Autoencoder::shift() const {
  const KlConfig* kl = kl_of(config_);
  return kl != nullptr ? kl->shift_factor.value_or(0.0) : 0.0;
}

void Autoencoder::set_tiling(std::optional<Tiling> tiling) {
  if (tiling) {
    const std::int64_t factor = downsampling();
    const auto [size, stride] = *tiling;
    if (size < factor || size % factor != 0 || stride < factor || stride % factor != 0 || stride > size ||
        2 * stride < size)
      fail(kAutoencoderEntry, ": tiles of ", size, " pixels every ", stride, ", expected multiples of ", factor,
           ", the stride from half the size to all of it");
  }
  tiling_ = tiling;
}

Posterior Autoencoder::posterior(const torch::Tensor& images) {
  const std::int64_t factor = downsampling();
  if (images.dim() != 4 || images.size(1) != image_channels() || images.size(2) < factor || images.size(3) < factor ||
      images.size(2) % factor != 0 || images.size(3) % factor != 0)
    fail(kAutoencoderEntry, ": images have shape ", c10::str(images.sizes()), ", expected [B, ", image_channels(),
         ", rows, columns], both multiples of ", factor);
  const bool cut = tiling_ && std::max(images.size(2), images.size(3)) > tiling_->size;
  const torch::Tensor x = images.to(dtype());
  const torch::Tensor moments =
      cut ? in_tiles(x, {tiling_->size, tiling_->stride, tiling_->size / factor, tiling_->stride / factor},
                     [&](const torch::Tensor& tile) { return encode_tile(tile); })
          : encode_tile(x);
  if (kl_of(config_) == nullptr) return {moments, {}};
  const std::vector<torch::Tensor> halves = moments.chunk(2, 1);
  return {halves[0], halves[1].clamp(kLeastLogvar, kMostLogvar)};
}

torch::Tensor Autoencoder::encode(const torch::Tensor& images, const torch::Tensor& noise) {
  const Posterior p = posterior(images);
  torch::Tensor latent = p.mean;
  if (noise.defined()) {
    if (!p.logvar.defined()) fail(kAutoencoderEntry, ": noise is given, expected none: this encoder has no variance");
    if (noise.sizes() != latent.sizes())
      fail(kAutoencoderEntry, ": noise has shape ", c10::str(noise.sizes()), ", expected ", c10::str(latent.sizes()));
    latent = latent + p.std() * noise;
  }
  return (shift() == 0.0 ? latent : latent - shift()) * scale();
}

torch::Tensor Autoencoder::decode(const torch::Tensor& latents) {
  const torch::Tensor z = latents / scale();
  return decode_unscaled(shift() == 0.0 ? z : z + shift());
}

torch::Tensor Autoencoder::decode_unscaled(const torch::Tensor& latents) {
  if (latents.dim() != 4 || latents.size(1) != channels() || latents.size(2) < 1 || latents.size(3) < 1)
    fail(kAutoencoderEntry, ": latents have shape ", c10::str(latents.sizes()), ", expected [B, ", channels(),
         ", rows, columns]");
  const std::int64_t factor = downsampling();
  const torch::Tensor z = latents.to(dtype());
  if (!tiling_ || std::max(z.size(2), z.size(3)) * factor <= tiling_->size) return decode_tile(z);
  return in_tiles(z, {tiling_->size / factor, tiling_->stride / factor, tiling_->size, tiling_->stride},
                  [&](const torch::Tensor& tile) { return decode_tile(tile); });
}

AnyAutoencoder make_autoencoder(const AutoencoderConfig& config) {
  if (const KlConfig* kl = kl_of(config)) return std::make_shared<KlAutoencoderImpl>(*kl);
  return std::make_shared<DcAutoencoderImpl>(std::get<DcConfig>(config));
}

AnyAutoencoder load_autoencoder(const std::filesystem::path& folder, torch::ScalarType dtype) {
  AnyAutoencoder model = make_autoencoder(read_autoencoder_config(folder / "config.json"));
  model->to(dtype);
  labelled(folder.string(), [&] { load_published(*model, mapped_weights(folder)); });
  model->eval();
  return model;
}

void save_autoencoder(const Autoencoder& model, const std::filesystem::path& folder, AutoencoderNames names,
                      double shard_bytes) {
  OutputFolder place(folder);
  write_weights_folder(place, "diffusion_pytorch_model", to_published(model.config(), weights_of(model), names),
                       shard_bytes);
  write_file(place.claim("config.json"), write_json(autoencoder_json(model.config()), 2) + "\n");
  place.keep();
}

}  // namespace mhla
