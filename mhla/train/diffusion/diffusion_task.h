// Diffusion as a Task: a DiT and images with classes, or a SANA and latents with captions, the loss of noise prediction
// or flow matching; and the score of a denoiser on held-out images.
#pragma once

#include "mhla/models/autoencoder/autoencoder.h"
#include "mhla/train/diffusion/diffusion_data.h"
#include "mhla/train/diffusion/diffusion_process.h"
#include "mhla/train/sharing.h"
#include "mhla/train/task.h"

namespace mhla::train {

// Throws with the option, its value and what is expected; what needs the data is checked with it.
void check(const DiffusionOptions& options);

// The process of the options, and what its samples are: pixels, or latents of an autoencoder.
GenerationConfig generation_of(const DiffusionOptions& options, bool learn_sigma, const DiffusionSource& source);

// The network of the options, of as many channels and classes as the data has, or for captions as wide as they are;
// then every choice that was left open filled in.
NetworkConfig network_of(const DiffusionOptions& options, const DiffusionSource& source);
DiffusionOptions resolved(const DiffusionOptions& options, const NetworkConfig& network, const DiffusionSource& source);
// Throws with an estimate where the memory at hand cannot hold a training of it.
void expect_fits(const DiffusionOptions& options, const NetworkConfig& network);
// What processes that share every image exchange. Throws mhla::Error naming what cannot be cut between them.
SharedKind shared_kind(const NetworkConfig& network);

// How well noise is removed from held-out images. Every image is seen at the same times with noise of its own, whatever
// the model and its seed, so that differences between two models are paired.
struct DenoisingScore {
  std::int64_t images = 0, times = 0, damaged = 0;
  double mse = 0, mse_se = 0;  // of noise or velocity, over images and times; its standard error over images
  double vb = 0, loss = 0;     // of the variance, in bits (0 where none is learned); mse + vb
  std::vector<double> each;    // mse of every image, by number; NaN of damaged ones
  std::vector<std::string> warnings;
  double seconds = 0;
};
// In evaluation mode without gradients, in the precision of the options.
DenoisingScore denoising_score(const DiffusionModel& model, const HeldOutSamples& held_out,
                               const DiffusionProcess& process, const DiffusionOptions& options,
                               const EvalProgress& progress = {});

class DiffusionTask : public Task {
 public:
  // Seeded by prepare() before: the model's weights are drawn here.
  DiffusionTask(const DiffusionOptions& options, const DiffusionSource& source, const NetworkConfig& network);

  torch::nn::Module& model() override { return model_.module(); }
  [[nodiscard]] const DiffusionModel& network() const { return model_; }
  // What the sheets show, a row each, instead of captions of held-out images: states of prompts, up to kShown.
  void show(const Conditioning& prompts);
  [[nodiscard]] const GenerationConfig& generation() const { return process_.generation(); }
  [[nodiscard]] JsonValue model_config() const override { return model_.config().to_json(); }
  [[nodiscard]] const char* samples() const override { return "images"; }
  [[nodiscard]] int counted_by() const override { return options_.train.place.context; }
  void write_companions(const std::filesystem::path& folder) const override;
  [[nodiscard]] std::int64_t batches_per_epoch() const override { return training_->batches_per_epoch(); }
  // Samples, labels, times, noise; for a model of captions, whose labels are undefined, also captions and their mask.
  // Some labels or captions are dropped.
  TrainBatch next_batch() override;
  BatchResult forward(const TrainBatch& batch) override;
  [[nodiscard]] JsonValue cursor() const override { return training_->cursor(); }
  void seek(const JsonValue& cursor) override { training_->seek(cursor); }
  void constrain() override { model_.constrain(); }
  [[nodiscard]] std::string tested_on() const override;
  Metrics evaluate(const EvalProgress& progress) override;
  [[nodiscard]] MainMetric main_metric() const override { return {"mse", /*larger_is_better=*/false}; }
  [[nodiscard]] std::int64_t picture_every(std::int64_t total_steps) const override;
  // Latents are decoded; where their autoencoder is not there, no picture is made.
  Image picture(const EvalProgress& progress) override;  // a row of samples for each of some classes or prompts
  std::vector<std::string> take_warnings() override;

  static constexpr std::int64_t kShown = 10;  // rows of a sheet

 private:
  [[nodiscard]] Conditioning with_dropped(const SampleBatch& batch) const;  // some captions became the empty one
  [[nodiscard]] Conditioning shown(std::int64_t rows, std::int64_t columns) const;
  torch::Tensor decoded(const torch::Tensor& latents);
  DiffusionOptions options_;
  DiffusionSource source_;
  torch::Device device_;
  DiffusionProcess process_;
  std::unique_ptr<TrainingSamples> training_;
  std::unique_ptr<HeldOutSamples> held_out_;
  DiffusionModel model_;
  Conditioning prompts_, null_;               // of a model of captions: what sheets show, and the empty caption
  std::filesystem::path autoencoder_folder_;  // of latents; empty: none is there
  AnyAutoencoder autoencoder_;                // opened for the first picture
  std::vector<std::string> warnings_;
  std::optional<SharedSequences> sharing_;
};

}  // namespace mhla::train
