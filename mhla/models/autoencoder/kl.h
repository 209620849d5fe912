// AutoencoderKL: residual blocks of GroupNorm, SiLU and 3x3 convolutions in levels of halved resolution, and one
// attention of a single head in the middle of encoder and decoder. Downsampling pads the right and the bottom only.
#pragma once

#include "mhla/models/autoencoder/autoencoder.h"

namespace mhla {

class KlEncoderImpl;
class KlDecoderImpl;

class KlAutoencoderImpl : public Autoencoder {
 public:
  explicit KlAutoencoderImpl(const KlConfig& config);
  [[nodiscard]] Tiling usual_tiling() const override { return {512, 384}; }

 protected:
  torch::Tensor encode_tile(const torch::Tensor& images) override;
  torch::Tensor decode_tile(const torch::Tensor& latents) override;

 private:
  std::shared_ptr<KlEncoderImpl> encoder_;
  std::shared_ptr<KlDecoderImpl> decoder_;
  torch::nn::Conv2d quant_{nullptr}, post_quant_{nullptr};
};

}  // namespace mhla
