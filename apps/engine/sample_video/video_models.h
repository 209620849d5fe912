// The transformer and the autoencoder of `mhla sample video`, loaded when they are needed, and frames as pictures.
#pragma once

#include <functional>

#include "apps/engine/sample_video/video_memory.h"
#include "mhla/models/wan/wan.h"

namespace mhla::apps {

// Before anything is computed: the files have as many numbers as the configurations say.
void expect_weights_of(const VideoPlan& plan, bool with_encoder);

class VideoModels {
 public:
  VideoModels(const VideoPlan& plan, const VideoMemory& memory, torch::Device device, torch::ScalarType dtype)
      : plan_(plan), memory_(memory), device_(device), dtype_(dtype) {}

  Wan& transformer();
  // Frames of latents [1, channels, frames, rows, columns], one after the other. RunFailed where one is NaN. Without
  // room for both models the transformer is freed before.
  void decode(const torch::Tensor& latents, const std::function<void(const Image&)>& take);

 private:
  WanVae& autoencoder();

  const VideoPlan& plan_;
  const VideoMemory& memory_;
  torch::Device device_;
  torch::ScalarType dtype_;
  Wan transformer_{nullptr};
  WanVae autoencoder_{nullptr};
};

}  // namespace mhla::apps
