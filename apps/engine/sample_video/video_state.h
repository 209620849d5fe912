// A video on its way from noise (--save-latents, --resume): the latents after a step, what the sampler remembers, the
// text embeddings and the settings, in one safetensors file. It goes on bit for bit.
#pragma once

#include "apps/engine/sample_video/video_plan.h"

namespace mhla::apps {

struct VideoState {
  std::int64_t step = 0;  // steps that are done
  torch::Tensor x;        // [1, channels, frames, rows, columns] f32
  Sampler::Memory memory;
  torch::Tensor text, negative;  // [1, tokens, text_dim] f32; the second is undefined without guidance
};

void write_video_state(const std::filesystem::path& path, const VideoState& state, const JsonValue& settings);
// Refuses a file of something else, and one whose settings differ: the message names the first of them.
VideoState read_video_state(const std::filesystem::path& path, const VideoPlan& plan);

// The noise of a file: one tensor of the size of the latents.
torch::Tensor read_video_noise(const std::filesystem::path& path, const VideoPlan& plan);

}  // namespace mhla::apps
