// What a denoiser learns from: images as pixels from -1 to 1, with their classes.
#pragma once

#include <functional>
#include <memory>

#include "mhla/models/dit/dit_config.h"
#include "mhla/train/diffusion/diffusion_options.h"
#include "mhla/train/image_data.h"

namespace mhla::train {

struct SampleBatch {
  torch::Tensor x;  // [B, channels, rows, columns] f32 where the model is
  std::vector<std::int64_t> labels, items;
  std::int64_t epoch = 0, position = 0;
};

// The training part: endless, in an order fixed by the seed.
class TrainingSamples {
 public:
  virtual ~TrainingSamples() = default;
  [[nodiscard]] virtual std::int64_t batches_per_epoch() const = 0;
  virtual SampleBatch next(std::vector<std::string>& warnings) = 0;
  [[nodiscard]] virtual JsonValue cursor() const = 0;
  virtual void seek(const JsonValue& cursor) = 0;  // before the first next()
};

// The held-out part: every sample once, in the order of its number.
class HeldOutSamples {
 public:
  virtual ~HeldOutSamples() = default;
  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual std::int64_t size() const = 0;
  virtual void each(std::vector<std::string>& warnings, const std::function<void(const SampleBatch&)>& visit) const = 0;
};

// The data that the options name, opened but not looked into.
struct DiffusionSource {
  ImageData images;

  [[nodiscard]] const ImageSet& set() const { return images.train ? *images.train : *images.test; }
  [[nodiscard]] std::string name() const { return set().name(); }
  [[nodiscard]] std::int64_t channels() const { return set().channels(); }
  [[nodiscard]] std::int64_t classes() const { return set().classes(); }
  [[nodiscard]] const std::vector<std::string>& class_names() const { return set().class_names(); }
};
DiffusionSource open_source(const DiffusionOptions& options);
// The same held-out part without a look at the training files.
DiffusionSource open_held_out(const DiffusionOptions& options);

// From an image of the set to the network's input: its size, its channels, -1 to 1.
Augment augment_of(const DiffusionOptions& options, const DitConfig& network, const ImageSet& set);

std::unique_ptr<TrainingSamples> training_samples(const DiffusionSource& source, const DiffusionOptions& options,
                                                  const DitConfig& network);
std::unique_ptr<HeldOutSamples> held_out_samples(const DiffusionSource& source, const DiffusionOptions& options,
                                                 const DitConfig& network);

}  // namespace mhla::train
