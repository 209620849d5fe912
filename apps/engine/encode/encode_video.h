// What `mhla data encode` does with videos: Wan's autoencoder for frames, umT5 for captions.
#pragma once

#include <optional>

#include "apps/engine/encode/encode_items.h"
#include "mhla/core/memory.h"
#include "mhla/data/latent_set.h"
#include "mhla/io/text/tokenizer.h"
#include "mhla/models/autoencoder/wan_vae.h"
#include "mhla/models/denoiser.h"
#include "mhla/models/text_encoder/umt5.h"

namespace mhla::apps {

bool has_wan_vae(const EncodeRequest& request);  // --vae is Wan's, so that the items are videos

// Clips of --data with their captions. They must fit the autoencoder: the nearest sizes are named.
EncodeItems video_items(const EncodeRequest& request);

// Both networks as their configurations describe them; the weights are read when they are needed.
class VideoEncoders {
 public:
  VideoEncoders(const EncodeRequest& request, const EncodeItems& items);

  // Shapes of latents and captions, what made them.
  void describe(LatentSetConfig& config) const;
  void add_memory(MemoryEstimate& network, bool cuda) const;

  torch::Tensor latents(std::int64_t first, std::int64_t count, torch::Device device);  // [n, C, F, H, W] f32
  Conditioning captions(const std::vector<std::string>& texts, torch::Device device);   // [n, T, C] f32, [n, T]

 private:
  [[nodiscard]] std::vector<std::int64_t> ids_of(const std::string& caption) const;

  const EncodeRequest& request_;
  const EncodeItems& items_;
  WanVaeConfig vae_config_;
  Umt5Config encoder_config_;
  TokenizerPtr tokenizer_;
  std::int64_t tokens_;
  WanVae vae_{nullptr};
  Umt5 encoder_{nullptr};
};

}  // namespace mhla::apps
