// What a denoiser learns from: images as pixels from -1 to 1, or cached latents of them (data/latent_set.h), with their
// classes or captions.
#pragma once

#include <functional>
#include <memory>

#include "mhla/data/latent_set.h"
#include "mhla/models/denoiser.h"
#include "mhla/train/diffusion/diffusion_model.h"
#include "mhla/train/diffusion/diffusion_options.h"
#include "mhla/train/image_data.h"

namespace mhla::train {

struct SampleBatch {
  torch::Tensor x;                          // [B, channels, rows, columns] f32 where the model is
  std::vector<std::int64_t> labels, items;  // labels: empty for a model of captions
  Conditioning captions;                    // states and mask there too; undefined for a model of classes
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

// Latents of both parts: of two sets, or of one of which some are held out. Items are numbers in their set.
struct LatentData {
  std::shared_ptr<const LatentSet> train_set, test_set;
  std::vector<std::int64_t> train, test;
  bool held_out = false;
};

// The data that the options name, opened but not looked into.
struct DiffusionSource {
  ImageData images;                           // pixels, or
  std::shared_ptr<const LatentData> latents;  // latents

  [[nodiscard]] std::string name() const;
  [[nodiscard]] std::int64_t channels() const;
  [[nodiscard]] std::vector<std::string> class_names() const;
  [[nodiscard]] std::int64_t classes() const { return static_cast<std::int64_t>(class_names().size()); }
  [[nodiscard]] bool has_captions() const { return latents && latents->test_set->config().has_captions(); }
  [[nodiscard]] std::int64_t test_size() const;
  [[nodiscard]] bool held_out() const { return latents ? latents->held_out : images.held_out; }
  [[nodiscard]] std::vector<std::string> warnings() const;  // about files that were left out
};
DiffusionSource open_source(const DiffusionOptions& options);
// The same held-out part without a look at the training files.
DiffusionSource open_held_out(const DiffusionOptions& options);
// Data that a model has not seen: its held-out part, or where it has none of its own all of it.
DiffusionSource open_unseen(const DiffusionOptions& options);
// Whether `data` is a folder of latents, or of train/ and val/ (or test/) with latents.
bool is_latent_data(const std::string& data);

// From an image of the set to the network's input: its size, its channels, -1 to 1.
Augment augment_of(const DiffusionOptions& options, const DitConfig& network, const ImageSet& set);

std::unique_ptr<TrainingSamples> training_samples(const DiffusionSource& source, const DiffusionOptions& options,
                                                  const NetworkConfig& network);
std::unique_ptr<HeldOutSamples> held_out_samples(const DiffusionSource& source, const DiffusionOptions& options,
                                                 const NetworkConfig& network);

// ---- Latents (diffusion_latents.cpp)

LatentData open_latents(const DiffusionOptions& options, bool whole = false);  // whole: all of it is the held-out part
// `captions`: with them, not with labels.
std::unique_ptr<TrainingSamples> training_latents(const LatentData& data, const DiffusionOptions& options,
                                                  bool captions);
std::unique_ptr<HeldOutSamples> held_out_latents(const LatentData& data, const DiffusionOptions& options,
                                                 bool captions);
// States of some captions of a set, and of the empty one, where the model is.
Conditioning captions_of(const LatentSet& set, const std::vector<std::int64_t>& items, const torch::Device& device);
Conditioning null_caption_of(const LatentSet& set, const torch::Device& device);  // one row

}  // namespace mhla::train
