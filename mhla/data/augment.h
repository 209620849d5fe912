// From a decoded image to the network's input, as options. Random choices come from (seed, epoch, item) alone, so an
// item of an epoch has the same bits whichever thread makes it and wherever the run was resumed.
//
// Order: fit to height x width, flip, RandAugment, colour jitter, shift, channels, (x / 255 - mean) / std, erasing,
// then over the batch mixup or cutmix. Geometry and colour work on 8-bit pixels with PIL's rounding.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mhla/data/image_set.h"

namespace mhla {

enum class Fit : std::uint8_t {
  kPad,          // zeros on all sides, the image in the middle; larger images are refused
  kPadOrResize,  // kPad where the image is no larger, else kResize
  kResize,       // both sides, whatever the shape
  kCenterCrop,   // the image scaled to cover the target / crop_fraction, then its middle
  kRandomCrop,   // a random part (crop_area, crop_ratio), resized
};

enum class Interpolation : std::uint8_t { kBilinear, kBicubic, kRandom };  // kRandom: one of the two, per image

// RandAugment as timm reads "rand-m9-mstd0.5-inc1": `layers` of 15 operations, each applied with probability 0.5 at a
// magnitude drawn around `magnitude` of 10.
struct RandAugment {
  int layers = 0;  // 0: off
  double magnitude = 9.0;
  double magnitude_std = 0.0;
  bool increasing = false;  // inc1: posterise, solarise and the enhancers grow stronger with the magnitude
  double probability = 0.5;
};
RandAugment parse_rand_augment(const std::string& text);  // "" is off; n, m, mstd, p and inc are known

struct Augment {
  int height = 0, width = 0;  // of the result; 0: those of the set
  int channels = 0;           // 1 or 3; 0: those of the set
  Fit fit = Fit::kResize;
  Interpolation interpolation = Interpolation::kBicubic;
  double crop_area[2] = {0.08, 1.0};
  double crop_ratio[2] = {3.0 / 4.0, 4.0 / 3.0};  // width / height
  double crop_fraction = 0.875;
  double flip = 0.0;  // probability of left for right
  RandAugment rand_augment;
  double color_jitter = 0.0;   // brightness, contrast and saturation by factors in [1 - x, 1 + x], in random order
  int shift = 0;               // one shift per batch, up to so many pixels along each axis, zeros come in
  std::vector<float> mean{0};  // of x / 255, one per channel or one for all
  std::vector<float> std{1};
  double erase = 0.0;  // probability that one rectangle of 2 to 33 % becomes N(0, 1) noise
  double mixup = 0.0;  // alpha of the Beta law; 0: off
  double cutmix = 0.0;
  double switch_to_cutmix = 0.5;  // where both are on
  double mix_probability = 1.0;
};

// What evaluation sees: the same size, channels and normalisation, nothing random. A random crop becomes a centre crop.
Augment without_chance(const Augment& augment);

// Known recipes for images of `set`, brought to height x width with the set's normalisation:
//   none      nothing random; images that are no larger are padded, others resized
//   small     as none, with flips and a shift of up to 2 pixels per batch
//   strong    as small, with a shift of up to 4, RandAugment and erasing: 32 x 32 images for many epochs
//   official  the script of the published MHLA classifier; deit: DeiT upstream (its loader has repeats = 3);
//   vlt       VLT upstream. These three crop at random. timm leaves colour jitter out where RandAugment is on
Augment augment_recipe(const std::string& name, const ImageSet& set, int height, int width);
std::vector<std::string> augment_recipes();

// Mean and standard deviation per channel of a set that is known (fashion-mnist, mnist, cifar10, cifar100), else those
// of ImageNet for colour and one half for grey.
struct Normalization {
  std::vector<float> mean, std;
};
Normalization normalization_of(const ImageSet& set);
std::string normalization_name(const ImageSet& set);
std::string normalization_name(const std::string& kind, int channels);  // of a set of this kind()
Normalization normalization_called(const std::string& name);            // also imagenet, and half: 0.5 for all

// Throws what is wrong with `augment`, by field.
void check_augment(const Augment& augment);

}  // namespace mhla
