// Text to video as a Task: a Wan transformer, clips or latents with captions, the loss of flow matching, and the score
// of a model on held-out clips.
#pragma once

#include "mhla/diffusion/generation_config.h"
#include "mhla/models/wan/wan.h"
#include "mhla/train/diffusion/diffusion_process.h"
#include "mhla/train/sharing.h"
#include "mhla/train/task.h"
#include "mhla/train/video/video_data.h"

namespace mhla::train {

// Throws with the option, its value and what is expected; what needs the data is checked with it.
void check(const VideoOptions& options);

// The network of the options before the data is known: by name or from a file, with its attention.
WanConfig named_network(const VideoOptions& options);
// The same with the channels and the words that the data has.
WanConfig network_of(const VideoOptions& options, const VideoSource& source);
// Every choice that was left open filled in.
VideoOptions resolved(const VideoOptions& options, const WanConfig& network, const VideoSource& source);
// The process, and what samples of it are.
GenerationConfig generation_of(const VideoOptions& options, const VideoSource& source);
// Throws with an estimate where the memory at hand cannot hold a training of it.
void expect_fits(const VideoOptions& options, const WanConfig& network, const VideoSource& source);
// What processes that share every clip exchange. Throws mhla::Error naming what cannot be cut between them.
SharedKind shared_kind(const WanConfig& network, const VideoSource& source);

// How well the velocity of held-out clips is predicted. Every clip is seen at the same times, with noise of its own at
// each, whatever the model and its seed, so that differences between two models are paired.
struct VideoScore {
  std::int64_t clips = 0, damaged = 0;
  double mse = 0, mse_se = 0;   // over clips and times; its standard error over clips
  std::vector<double> times;    // s, from 0 (clip) to 1 (noise)
  std::vector<double> by_time;  // mse at each
  std::vector<double> each;     // mse of every clip, by number; NaN of damaged ones
  std::vector<std::string> warnings;
  double seconds = 0;
};
std::vector<double> video_times(std::int64_t count);  // the middles of `count` parts of 0 to 1
// In evaluation mode without gradients, in the precision of the options.
VideoScore video_score(WanImpl& model, const VideoItems& held_out, const VideoOptions& options,
                       const EvalProgress& progress = {});

// Clips [B, 3, frames, rows, columns], -1 to 1, on the device: Euler steps from noise keyed by (seed, number).
struct ClipRequest {
  torch::Tensor captions;             // [B, T] words, on the device
  std::vector<std::int64_t> numbers;  // of the clips
  std::vector<std::int64_t> shape;    // channels, frames, rows, columns
  std::int64_t steps = 25, unshuffle = 2, together = 0;
  double guidance = 3.0, shift = 3.0;
  std::uint64_t seed = 0;
};
torch::Tensor sample_clips(WanImpl& model, const ClipRequest& request, const EvalProgress& progress = {});

class VideoTask : public Task {
 public:
  // Seeded by prepare() before: the model's weights are drawn here.
  VideoTask(const VideoOptions& options, const VideoSource& source, const WanConfig& network);

  torch::nn::Module& model() override { return *model_; }
  WanImpl& wan() { return *model_; }
  // Whose velocity is imitated; its captions and clips must be those of this task.
  void set_teacher(const Wan& teacher);
  [[nodiscard]] JsonValue model_config() const override { return fields_to_json(model_->config()); }
  [[nodiscard]] const char* samples() const override { return "clips"; }
  [[nodiscard]] int counted_by() const override { return options_.train.place.context; }
  void write_companions(const std::filesystem::path& folder) const override;
  [[nodiscard]] std::int64_t batches_per_epoch() const override { return training_.batches_per_epoch(); }
  TrainBatch next_batch() override;  // clips, captions of which some are dropped, times, noise
  BatchResult forward(const TrainBatch& batch) override;
  [[nodiscard]] JsonValue cursor() const override { return training_.cursor(); }
  void seek(const JsonValue& cursor) override { training_.seek(cursor); }
  void constrain() override { model_->constrain(); }
  [[nodiscard]] std::string tested_on() const override;
  Metrics evaluate(const EvalProgress& progress) override;
  [[nodiscard]] MainMetric main_metric() const override { return {"mse", /*larger_is_better=*/false}; }
  [[nodiscard]] std::int64_t picture_every(std::int64_t total_steps) const override;
  Image picture(const EvalProgress& progress) override;  // a row of frames for each of some clips
  std::vector<std::string> take_warnings() override;

 private:
  VideoOptions options_;
  VideoSource source_;
  torch::Device device_;
  DiffusionProcess process_;
  FlowMatching flow_;
  TrainingVideos training_;
  Wan model_, teacher_{nullptr};
  torch::Tensor empty_caption_;  // on the device
  std::vector<std::string> warnings_;
  std::optional<SharedSequences> sharing_;
};

}  // namespace mhla::train
