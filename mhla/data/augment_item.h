// One image through the whole pipeline of Augment, and what a batch draws once for all its images.
#pragma once

#include <array>
#include <vector>

#include "mhla/data/augment.h"
#include "mhla/data/philox.h"
#include "mhla/data/resample.h"

namespace mhla {

// What all images of a batch share.
struct BatchDraw {
  int down = 0, right = 0;  // shift
  enum class Mix : std::uint8_t { kNone, kMixup, kCutmix } mix = Mix::kNone;
  double weight = 1.0;  // of an image's own label
  Box cut;              // kCutmix: this part comes from the partner
};
BatchDraw draw_batch(const Augment& augment, std::uint64_t seed, std::int64_t epoch, std::int64_t position);

// Turns Augment into tables once; then augments from any thread. Sizes, channels, mean and std must be filled in.
class ItemAugmenter {
 public:
  explicit ItemAugmenter(Augment augment);

  // scratch.image holds the decoded image. `out` is [channels, height, width]; `copy` counts repeated augmentations of
  // one item in an epoch.
  void augment_item(ItemScratch& scratch, const BatchDraw& batch, std::uint64_t seed, std::int64_t epoch,
                    std::int64_t item, int copy, float* out) const;
  // Its first part: scratch.image brought to size. Draws from `random` only where the fit is random.
  void fit(ItemScratch& scratch, Philox& random) const;
  [[nodiscard]] std::int64_t item_floats() const {
    return std::int64_t{augment_.channels} * augment_.height * augment_.width;
  }

 private:
  void jitter(Image& image, Philox& random) const;
  void normalize(const Image& image, float* out) const;
  void erase(Philox& random, float* out) const;

  Augment augment_;
  std::vector<std::array<float, 256>> tables_;  // per channel, (v / 255 - mean) / std
};

// The random part of torchvision's RandomResizedCrop: ten tries for area and ratio, then the largest middle part whose
// ratio is allowed.
Box random_crop(const Augment& augment, int height, int width, Philox& random);

// Mixes `count` images [count, channels, height, width] in place, image i with image count - 1 - i.
void mix_images(const BatchDraw& draw, std::int64_t count, int channels, int height, int width, float* images);

}  // namespace mhla
