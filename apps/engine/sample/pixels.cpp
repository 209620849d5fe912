#include "apps/engine/sample/pixels.h"

#include <algorithm>

#include "mhla/core/run_failed.h"
#include "mhla/data/image_output.h"

namespace mhla::apps {
namespace {

constexpr std::int64_t kDecodedPixels = std::int64_t{1}
                                        << 21;  // decoded together on a GPU: 32 of 256 x 256, 2 of 1024 x 1024
constexpr std::int64_t kUsualTile = 512;        // as published

}  // namespace

Plane decoded_size(const SamplePlan& plan, bool tile) {
  if (!tile) return plan.images;
  return {std::min(plan.images[0], kUsualTile), std::min(plan.images[1], kUsualTile)};
}

std::int64_t decoded_together(const SamplePlan& plan, torch::Device device) {
  return device.is_cpu() ? 1 : std::max<std::int64_t>(1, kDecodedPixels / (plan.images[0] * plan.images[1]));
}

PixelMaker::PixelMaker(const SamplePlan& plan, torch::Device device, torch::ScalarType dtype, bool tile)
    : plan_(plan), device_(device) {
  if (!plan.autoencoder) return;
  autoencoder_ = load_autoencoder(plan.vae, dtype);
  autoencoder_->to(device);
  autoencoder_->eval();
  if (tile) autoencoder_->set_tiling(autoencoder_->usual_tiling());
}

torch::Tensor PixelMaker::decoded(const torch::Tensor& samples) {
  if (!autoencoder_) return samples;
  return autoencoder_->decode_unscaled(samples / plan_.latent_scale + plan_.latent_shift);
}

std::vector<Image> PixelMaker::images(const torch::Tensor& samples, const std::vector<std::int64_t>& numbers) {
  const torch::NoGradGuard no_gradient;
  std::vector<Image> images;
  const std::int64_t together = decoded_together(plan_, device_);
  for (std::int64_t first = 0; first < samples.size(0); first += together) {
    const std::int64_t count = std::min(together, samples.size(0) - first);
    const torch::Tensor pixels = decoded(samples.narrow(0, first, count)).to(torch::kFloat).cpu().contiguous();
    const auto channels = static_cast<int>(pixels.size(1)), rows = static_cast<int>(pixels.size(2)),
               columns = static_cast<int>(pixels.size(3));
    const auto size = static_cast<std::size_t>(pixels[0].numel());
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t number = numbers[static_cast<std::size_t>(first + i)];
      if (!torch::isfinite(pixels[i]).all().item<bool>())
        throw RunFailed(str("sample: image ", number, " is NaN or infinite after ", plan_.vae.string()));
      const std::span<const float> planes(pixels.data_ptr<float>() + static_cast<std::size_t>(i) * size, size);
      images.push_back(to_image(planes, channels, rows, columns));
    }
  }
  return images;
}

}  // namespace mhla::apps
