// What a video model learns from: clips as pixels, whose squares became channels, with captions as words; or cached
// latents with the states of their captions (data/latent_set.h). Both are numbered items here.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>

#include "mhla/data/caption_words.h"
#include "mhla/data/latent_set.h"
#include "mhla/data/video_set.h"
#include "mhla/models/wan/wan_config.h"
#include "mhla/train/item_order.h"
#include "mhla/train/torch.h"
#include "mhla/train/video/video_options.h"

namespace mhla::train {

struct VideoBatch {
  torch::Tensor x;         // [B, channels, frames, rows, columns] f32 where the model is
  torch::Tensor captions;  // [B, T] int64: numbers of words; or [B, T, C] f32: states of a text encoder
  std::vector<std::int64_t> items;
  std::int64_t epoch = 0, position = 0;
};

// One part of the data, for training or held out.
class VideoItems {
 public:
  virtual ~VideoItems() = default;
  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual std::int64_t size() const = 0;
  [[nodiscard]] virtual std::vector<std::int64_t> shape() const = 0;       // channels, frames, rows, columns
  [[nodiscard]] virtual std::string checksum() const = 0;                  // of its items, in their order
  [[nodiscard]] virtual std::string caption(std::int64_t item) const = 0;  // empty where only its states are there
  // Items that can be read, on the device; one that cannot adds a line to `damaged` and is left out.
  virtual VideoBatch read(const std::vector<std::int64_t>& items, const torch::Device& device,
                          std::vector<std::string>& damaged) const = 0;
};
using VideoItemsPtr = std::shared_ptr<const VideoItems>;

// The data that the options name.
struct VideoSource {
  VideoItemsPtr train, test;
  bool held_out = false;              // the test clips are of the training set, which does not have them any more
  std::optional<CaptionWords> words;  // of clips
  torch::Tensor empty_caption;        // [1, T] or [1, T, C]: what a dropped caption becomes
  std::string autoencoder;            // of latents: its folder
  std::vector<std::int64_t>
      pixels;  // of latents: frames, rows and columns of the clips they were made of; may be empty

  [[nodiscard]] std::vector<std::int64_t> shape() const { return test->shape(); }
  [[nodiscard]] bool is_latent() const { return !words.has_value(); }
};
// `tokens`: words of a caption that the model reads. `words`: of a model that exists; none: those of the data.
// `unseen`: all clips of a folder without a test set are the test set, since the model has not seen them.
VideoSource open_source(const VideoOptions& options, std::int64_t tokens, const std::optional<CaptionWords>& words,
                        bool unseen = false);

// Clips held in memory, for tests.
VideoSource source_of(VideoSetPtr train, VideoSetPtr test, const CaptionWords& words, std::int64_t tokens,
                      std::int64_t unshuffle);

// [B, 3, F, H, W] to [B, 3 s s, F, H / s, W / s] and back: channel (c s + y) s + x is colour c of pixel (y, x) of its
// square, as torch's pixel_unshuffle has it.
torch::Tensor unshuffled(const torch::Tensor& videos, std::int64_t side);
torch::Tensor shuffled(const torch::Tensor& places, std::int64_t side);

// Endless batches of the training part, in an order fixed by the seed.
class TrainingVideos {
 public:
  TrainingVideos(VideoItemsPtr items, const VideoOptions& options);
  [[nodiscard]] std::int64_t batches_per_epoch() const { return order_.batches_per_epoch(); }
  VideoBatch next(std::vector<std::string>& warnings);
  [[nodiscard]] JsonValue cursor() const { return order_.cursor().set("items", items_->checksum()); }
  void seek(const JsonValue& cursor);

 private:
  VideoItemsPtr items_;
  torch::Device device_;
  ItemOrder order_;
  std::int64_t most_damaged_;
  std::set<std::string> damaged_;
};

// Every item of the held-out part once, in the order of its number; this process's share of them.
void each_held_out(const VideoItems& items, const VideoOptions& options, std::vector<std::string>& warnings,
                   const std::function<void(const VideoBatch&)>& visit);

}  // namespace mhla::train
