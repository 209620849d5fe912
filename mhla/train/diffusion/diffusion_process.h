// The process that a denoiser learns, noise prediction or flow matching: its loss, and what a training draws at random.
// All of it is keyed: the time and the dropped label of a training image by (seed, epoch, image), those of a held-out
// image by its number, so that a resumed run sees the same, and two runs are judged on the same noise.
#pragma once

#include <memory>
#include <optional>

#include "mhla/diffusion/generation_config.h"
#include "mhla/diffusion/samplers.h"
#include "mhla/train/diffusion/diffusion_options.h"
#include "mhla/train/torch.h"

namespace mhla::train {

// What the options say of the process, for a network that learns the variance or not; of pixels.
GenerationConfig generation_of(const DiffusionOptions& options, bool learn_sigma);

class DiffusionProcess {
 public:
  DiffusionProcess(const GenerationConfig& generation, double logit_mean = 0.0, double logit_std = 1.0);
  explicit DiffusionProcess(const DiffusionOptions& options, bool learn_sigma);

  struct Loss {
    torch::Tensor total, mse, vb;  // [B] each; mse: of the noise or the velocity; vb: undefined but for noise
  };
  [[nodiscard]] Loss loss(Denoiser& model, const torch::Tensor& x_start, const torch::Tensor& noise,
                          const torch::Tensor& index, const Conditioning& condition) const;
  [[nodiscard]] std::unique_ptr<Sampler> sampler(std::int64_t steps, bool clip) const;
  [[nodiscard]] const GenerationConfig& generation() const { return generation_; }

  // ---- In training

  // Index of a time for every item; and labels, of which `dropout` became `null_class`.
  [[nodiscard]] std::vector<std::int64_t> draw_times(std::uint64_t seed, std::int64_t epoch,
                                                     const std::vector<std::int64_t>& items) const;
  // ---- In evaluation

  // `count` times from the low end to the high one. Of 1000 steps and 14 times: 20, 90, ..., 930.
  [[nodiscard]] std::vector<std::int64_t> times_to_judge(std::int64_t count) const;

 private:
  GenerationConfig generation_;
  std::optional<GaussianDiffusion> gaussian_;
  std::optional<FlowMatching> flow_;
};

std::vector<std::int64_t> drop_labels(std::vector<std::int64_t> labels, double dropout, std::int64_t null_class,
                                      std::uint64_t seed, std::int64_t epoch, const std::vector<std::int64_t>& items);

// [items, shape...] N(0, 1) for training. On the CPU that of an image is keyed by (seed, epoch, image); a GPU draws
// that of a batch in one go, keyed by (seed, epoch, position).
torch::Tensor training_noise(std::uint64_t seed, std::int64_t epoch, std::int64_t position,
                             const std::vector<std::int64_t>& items, at::IntArrayRef shape,
                             const torch::Device& device);
// [items, shape...] N(0, 1) of held-out images at one of the times, the same on every device.
torch::Tensor judging_noise(std::uint64_t seed, std::int64_t time, const std::vector<std::int64_t>& items,
                            at::IntArrayRef shape, const torch::Device& device);

}  // namespace mhla::train
