// A judge of moving garments: a small network of 3D convolutions that reads class, colour, direction, speed and ground
// off a clip. Samples are judged by what it finds in them, by the Frechet distance of its 128 features, and by how the
// mass moves, for which no network is needed.
#pragma once

#include <filesystem>

#include "mhla/data/moving_garments.h"
#include "mhla/train/task.h"
#include "mhla/train/video/video_data.h"

namespace mhla::train {

class VideoJudgeImpl : public torch::nn::Module {
 public:
  static constexpr std::int64_t kFeatures = 128;
  VideoJudgeImpl();
  // clips [B, 3, frames, rows, columns], -1 to 1; place and order in time are kept by pooling to 2 x 2 x 2.
  torch::Tensor features(const torch::Tensor& clips);              // [B, 128]
  std::vector<torch::Tensor> read(const torch::Tensor& features);  // logits of every attribute

 private:
  torch::nn::Sequential convolutions_{nullptr};
  torch::nn::Linear pooled_{nullptr};
  std::vector<torch::nn::Linear> heads_;
};
TORCH_MODULE(VideoJudge);

// [items, attributes] int64 of their captions, which must be those of moving garments.
torch::Tensor attributes_of(const VideoItems& items, const std::vector<std::int64_t>& numbers);

// Trained on clips of `train` with some noise: AdamW, 2e-3 to 0 by a cosine, batches of 64.
struct JudgeTraining {
  std::int64_t steps = 600, unshuffle = 2;
  std::string device = "cpu", precision = "f32";
};
VideoJudge train_judge(const VideoItems& train, const JudgeTraining& how, const EvalProgress& progress = {});

// judge.safetensors and judge.json, which names the shape of clips it was trained on.
bool has_judge(const std::filesystem::path& folder);
void save_judge(const VideoJudgeImpl& judge, const std::vector<std::int64_t>& shape, std::int64_t steps,
                const std::filesystem::path& folder);
VideoJudge load_judge(const std::filesystem::path& folder, const std::vector<std::int64_t>& shape);

// Of clips [B, 3, F, H, W] and the ground of each. `jitter`: pixels of the second difference of the centre of what is
// not ground, the median over frames; `flicker`: change of its mass from frame to frame, as a share. [B] each.
struct Motion {
  torch::Tensor jitter, flicker;
};
Motion motion_of(const torch::Tensor& clips, const torch::Tensor& grounds);

}  // namespace mhla::train
