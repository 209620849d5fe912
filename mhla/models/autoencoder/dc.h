// AutoencoderDC (DC-AE): residual blocks on the fine levels, blocks of multi-scale linear attention and GluConv on the
// coarse ones; every change of resolution has a shortcut without weights, pixels to channels or back.
//
// Its attention: q, k and v are concatenated to 3C channels, a depth-wise and a grouped 1x1 convolution make 3C more;
// then every 3 * head_dim consecutive channels are q, k and v of one head. So `to_q` is the first third of the
// published product, not what heads use as q.
#pragma once

#include "mhla/models/autoencoder/autoencoder.h"

namespace mhla {

class DcEncoderImpl;
class DcDecoderImpl;

class DcAutoencoderImpl : public Autoencoder {
 public:
  explicit DcAutoencoderImpl(const DcConfig& config);
  [[nodiscard]] Tiling usual_tiling() const override { return {512, 448}; }

 protected:
  torch::Tensor encode_tile(const torch::Tensor& images) override;
  torch::Tensor decode_tile(const torch::Tensor& latents) override;

 private:
  std::shared_ptr<DcEncoderImpl> encoder_;
  std::shared_ptr<DcDecoderImpl> decoder_;
};

}  // namespace mhla
