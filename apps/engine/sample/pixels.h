// From what a network makes to images: latents through the autoencoder, pixels as they are.
#pragma once

#include "apps/engine/sample/sample_plan.h"
#include "mhla/io/codecs/image.h"
#include "mhla/models/autoencoder/autoencoder.h"

namespace mhla::apps {

class PixelMaker {
 public:
  // Loads the autoencoder, where there is one, as `dtype`. `tile`: in tiles as published.
  PixelMaker(const SamplePlan& plan, torch::Device device, torch::ScalarType dtype, bool tile);
  // Samples [B, channels, rows, columns] with their numbers. RunFailed names a number whose image is NaN.
  std::vector<Image> images(const torch::Tensor& samples, const std::vector<std::int64_t>& numbers);

 private:
  [[nodiscard]] torch::Tensor decoded(const torch::Tensor& samples);

  const SamplePlan& plan_;
  torch::Device device_;
  AnyAutoencoder autoencoder_;
};

// Images that are decoded together: on the CPU one, so that its bits do not depend on the others.
std::int64_t decoded_together(const SamplePlan& plan, torch::Device device);
// Sides of what passes through the autoencoder at once: of a tile, or of an image.
Plane decoded_size(const SamplePlan& plan, bool tile);

}  // namespace mhla::apps
