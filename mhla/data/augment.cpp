// Options: what they mean for evaluation, the known recipes, and what can be wrong with them.
#include "mhla/data/augment.h"

#include <cmath>

#include "mhla/core/error.h"

namespace mhla {
namespace {

constexpr int kMaxSide = 65500;

void check_probability(const char* name, double value) {
  if (!(value >= 0.0 && value <= 1.0)) fail("augment: ", name, " is ", value, ", expected a probability from 0 to 1");
}

void check_range(const char* name, const double (&range)[2], double top) {
  if (!(range[0] > 0.0 && range[0] <= range[1] && range[1] <= top))
    fail("augment: ", name, " is ", range[0], " to ", range[1], ", expected a rising range above 0 and up to ", top);
}

void check_side(const char* name, int value) {
  if (value < 0 || value > kMaxSide) fail("augment: ", name, " is ", value, ", expected 1 to ", kMaxSide, ", or 0");
}

// timm's training transforms with the values of DeiT upstream.
Augment photo_recipe() {
  Augment augment;
  augment.fit = Fit::kRandomCrop;
  augment.flip = 0.5;
  augment.rand_augment = parse_rand_augment("rand-m9-mstd0.5-inc1");
  augment.erase = 0.25;
  augment.mixup = 0.8;
  augment.cutmix = 1.0;
  return augment;
}

}  // namespace

Augment without_chance(const Augment& augment) {
  Augment plain = augment;
  if (plain.fit == Fit::kRandomCrop) plain.fit = Fit::kCenterCrop;
  if (plain.interpolation == Interpolation::kRandom) plain.interpolation = Interpolation::kBicubic;
  plain.flip = plain.color_jitter = plain.erase = plain.mixup = plain.cutmix = 0.0;
  plain.rand_augment.layers = plain.shift = 0;
  return plain;
}

std::vector<std::string> augment_recipes() { return {"none", "small", "strong", "official", "deit", "vlt"}; }

Augment augment_recipe(const std::string& name, const ImageSet& set, int height, int width) {
  Augment augment;
  if (name == "none" || name == "small" || name == "strong") {
    const bool fits = set.height() > 0 && set.height() <= height && set.width() <= width;
    augment.fit = fits ? Fit::kPad : Fit::kResize;
    if (name != "none") augment.flip = 0.5;
    if (name == "small") augment.shift = 2;
    if (name == "strong") {
      augment.shift = 4;
      augment.rand_augment = parse_rand_augment("rand-m9-mstd0.5-inc1");
      augment.erase = 0.25;
    }
  } else if (name == "official" || name == "deit" || name == "vlt") {
    augment = photo_recipe();
    if (name == "official") {
      augment.mixup = 0.2;
      augment.interpolation = Interpolation::kRandom;
    }
  } else {
    std::string known;
    for (const std::string& one : augment_recipes()) known += (known.empty() ? "" : ", ") + one;
    fail("augment: recipe '", name, "' is unknown, expected one of ", known);
  }
  augment.height = height;
  augment.width = width;
  const Normalization normalization = normalization_of(set);
  augment.mean = normalization.mean;
  augment.std = normalization.std;
  return augment;
}

namespace {

struct NamedNormalization {
  const char* name;
  Normalization values;
};

const std::vector<NamedNormalization>& normalizations() {
  static const std::vector<NamedNormalization> all{
      {"fashion-mnist", {{0.2860f}, {0.3530f}}},
      {"mnist", {{0.1307f}, {0.3081f}}},
      {"cifar10", {{0.4914f, 0.4822f, 0.4465f}, {0.2470f, 0.2435f, 0.2616f}}},
      {"cifar100", {{0.5071f, 0.4866f, 0.4409f}, {0.2673f, 0.2564f, 0.2762f}}},
      {"imagenet", {{0.485f, 0.456f, 0.406f}, {0.229f, 0.224f, 0.225f}}},
      {"half", {{0.5f}, {0.5f}}},
  };
  return all;
}

}  // namespace

Normalization normalization_called(const std::string& name) {
  std::string known;
  for (const NamedNormalization& one : normalizations()) {
    if (name == one.name) return one.values;
    known += str(known.empty() ? "" : ", ", one.name);
  }
  fail("augment: normalize is '", name, "', expected one of ", known);
}

std::string normalization_name(const ImageSet& set) { return normalization_name(set.kind(), set.channels()); }

std::string normalization_name(const std::string& kind, int channels) {
  for (const NamedNormalization& one : normalizations()) {
    if (kind == one.name) return kind;
  }
  return channels == 1 ? "half" : "imagenet";
}

Normalization normalization_of(const ImageSet& set) { return normalization_called(normalization_name(set)); }

void check_augment(const Augment& augment) {
  check_side("height", augment.height);
  check_side("width", augment.width);
  if (augment.channels != 0 && augment.channels != 1 && augment.channels != 3)
    fail("augment: channels is ", augment.channels, ", expected 1 or 3, or 0 for those of the set");
  check_range("crop_area", augment.crop_area, 1.0);
  check_range("crop_ratio", augment.crop_ratio, 1000.0);
  if (!(augment.crop_fraction > 0.0 && augment.crop_fraction <= 1.0))
    fail("augment: crop_fraction is ", augment.crop_fraction, ", expected above 0 and up to 1");
  check_probability("flip", augment.flip);
  check_probability("erase", augment.erase);
  check_probability("switch_to_cutmix", augment.switch_to_cutmix);
  check_probability("mix_probability", augment.mix_probability);
  check_probability("rand_augment.probability", augment.rand_augment.probability);
  if (augment.rand_augment.layers < 0 || augment.rand_augment.layers > 100)
    fail("augment: rand_augment.layers is ", augment.rand_augment.layers, ", expected 0 to 100");
  if (!(augment.rand_augment.magnitude >= 0.0 && augment.rand_augment.magnitude <= 10.0))
    fail("augment: rand_augment.magnitude is ", augment.rand_augment.magnitude, ", expected 0 to 10");
  if (!(augment.rand_augment.magnitude_std >= 0.0 && augment.rand_augment.magnitude_std <= 100.0))
    fail("augment: rand_augment.magnitude_std is ", augment.rand_augment.magnitude_std, ", expected 0 to 100");
  if (!(augment.color_jitter >= 0.0 && augment.color_jitter <= 10.0))
    fail("augment: color_jitter is ", augment.color_jitter, ", expected 0 to 10");
  if (augment.shift < 0 || augment.shift > kMaxSide)
    fail("augment: shift is ", augment.shift, ", expected 0 or a number of pixels");
  for (const double alpha : {augment.mixup, augment.cutmix})
    if (!(alpha >= 0.0 && alpha <= 1000.0)) fail("augment: mixup or cutmix is ", alpha, ", expected 0 to 1000");
  if (augment.mean.empty() || augment.mean.size() != augment.std.size())
    fail("augment: ", augment.mean.size(), " values of mean and ", augment.std.size(), " of std, expected as many");
  for (std::size_t i = 0; i < augment.std.size(); ++i)
    if (!std::isfinite(augment.mean[i]) || !(augment.std[i] > 0.0f) || !std::isfinite(augment.std[i]))
      fail("augment: mean ", augment.mean[i], " and std ", augment.std[i], ", expected finite numbers, std above 0");
}

}  // namespace mhla
