// Labelled images of a training: its two sets, their batches, and what a checkpoint keeps of them. For every task that
// learns from an ImageSet.
#pragma once

#include <memory>
#include <optional>

#include "mhla/data/loader.h"
#include "mhla/io/json.h"
#include "mhla/train/torch.h"

namespace mhla::train {

// Training and test images as the options of a task name them.
struct ImageData {
  ImageSetPtr train, test;
  bool held_out = false;  // the test images are of the training set, which does not have them any more
};
struct ImageChoice {
  std::string data;
  std::int64_t train_images = 0, test_images = 0;  // 0: all
  double hold_out = 0.1;
  std::optional<std::int64_t> test_seed;  // chooses the test images, whatever the seed of the training
  std::int64_t seed = 0;                  // chooses the training images of train_images
};
ImageData open_images_of(const ImageChoice& choice);
// The same test images without a look at the training files; `train` is null unless they are held out of it.
ImageData open_test_images_of(const ImageChoice& choice);

// Pinned where it goes to a GPU, so that the copy does not wait for what is queued there.
torch::Tensor to_device(const void* data, at::IntArrayRef shape, torch::ScalarType dtype, const torch::Device& device);
torch::Tensor images_of(const Batch& batch, const torch::Device& device);  // [B, channels, height, width] f32
torch::Tensor labels_of(const Batch& batch, const torch::Device& device);  // [B] int64

// The batches of a training set, from the place where a checkpoint stood.
class ImageBatches {
 public:
  // Refused where the set has no whole batch.
  ImageBatches(ImageSetPtr set, LoaderOptions options);
  [[nodiscard]] std::int64_t per_epoch() const { return set_->size() / batch(); }
  // With at least one image, unless other parts of the batch may have some.
  const Batch& next(std::vector<std::string>& warnings);
  [[nodiscard]] JsonValue cursor() const;
  void seek(const JsonValue& cursor);  // before the first next()

 private:
  [[nodiscard]] std::int64_t parts() const { return options_.ranks * options_.per_rank; }
  [[nodiscard]] std::int64_t batch() const { return options_.batch_size * parts(); }
  ImageSetPtr set_;
  LoaderOptions options_;
  std::uint32_t labels_;            // their checksum
  std::unique_ptr<Loader> loader_;  // made when the first batch is asked for: seek() comes before
  Batch batch_;
};

}  // namespace mhla::train
