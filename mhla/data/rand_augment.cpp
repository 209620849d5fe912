// The operations and ranges of timm's RandAugment. Strengths run from 0 to 10.
#include "mhla/data/rand_augment.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "mhla/core/error.h"
#include "mhla/data/color.h"

namespace mhla {
namespace {

constexpr double kTop = 10.0;

bool directed(AugmentOp op, bool increasing) {
  switch (op) {
    case AugmentOp::kRotate:
    case AugmentOp::kShearX:
    case AugmentOp::kShearY:
    case AugmentOp::kTranslateX:
    case AugmentOp::kTranslateY: return true;
    case AugmentOp::kColor:
    case AugmentOp::kContrast:
    case AugmentOp::kBrightness:
    case AugmentOp::kSharpness: return increasing;
    default: return false;
  }
}

double number_in(const std::string& text, const std::string& part, std::size_t from) {
  double value = 0.0;
  const char* end = part.data() + part.size();
  const auto [stop, error] = std::from_chars(part.data() + from, end, value);
  if (error != std::errc() || stop != end)
    fail("rand_augment: '", part, "' of '", text, "' has no number, expected one such as ", part.substr(0, from), "9");
  return value;
}

}  // namespace

RandAugment parse_rand_augment(const std::string& text) {
  RandAugment options;
  if (text.empty()) return options;
  options.layers = 2;
  std::size_t begin = 0;
  for (bool first = true; begin <= text.size(); first = false) {
    const std::size_t end = std::min(text.find('-', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    begin = end + 1;
    if (first && part != "rand") fail("rand_augment: '", text, "' begins with '", part, "', expected rand");
    if (first) continue;
    if (part.rfind("mstd", 0) == 0) {
      options.magnitude_std = number_in(text, part, 4);
    } else if (part.rfind("inc", 0) == 0) {
      options.increasing = number_in(text, part, 3) != 0.0;
    } else if (part.rfind('m', 0) == 0) {
      options.magnitude = number_in(text, part, 1);
    } else if (part.rfind('n', 0) == 0) {
      options.layers = static_cast<int>(number_in(text, part, 1));
    } else if (part.rfind('p', 0) == 0) {
      options.probability = number_in(text, part, 1);
    } else {
      fail("rand_augment: '", part, "' of '", text, "' is unknown, expected m, mstd, n, p or inc and a number");
    }
  }
  return options;
}

double op_argument(AugmentOp op, double magnitude, bool increasing, bool negate) {
  const double level = magnitude / kTop;
  const double sign = negate ? -1.0 : 1.0;
  switch (op) {
    case AugmentOp::kRotate: return sign * level * 30.0;
    case AugmentOp::kPosterize: return increasing ? 4.0 - std::floor(level * 4.0) : std::floor(level * 4.0);
    case AugmentOp::kSolarize: {
      const double threshold = std::min(256.0, std::floor(level * 256.0));
      return increasing ? 256.0 - threshold : threshold;
    }
    case AugmentOp::kSolarizeAdd: return std::min(128.0, std::floor(level * 110.0));
    case AugmentOp::kColor:
    case AugmentOp::kContrast:
    case AugmentOp::kBrightness:
    case AugmentOp::kSharpness: return increasing ? std::max(0.1, 1.0 + sign * level * 0.9) : level * 1.8 + 0.1;
    case AugmentOp::kShearX:
    case AugmentOp::kShearY: return sign * level * 0.3;
    case AugmentOp::kTranslateX:
    case AugmentOp::kTranslateY: return sign * level * 0.45;
    default: return 0.0;
  }
}

void apply_op(AugmentOp op, double argument, Interpolation filter, const std::uint8_t* fill, ItemScratch& scratch) {
  Image& image = scratch.image;
  const auto move = [&](const Affine& map) {
    transform_image(image, map, filter, fill, scratch.other, scratch.resample);
    std::swap(scratch.image, scratch.other);
  };
  const int whole = static_cast<int>(argument);
  switch (op) {
    case AugmentOp::kAutoContrast: return stretch_contrast(image);
    case AugmentOp::kEqualize: return equalize(image);
    case AugmentOp::kInvert: return invert(image);
    case AugmentOp::kRotate: return move(rotation(argument, image.height, image.width));
    case AugmentOp::kPosterize: return posterize(image, whole);
    case AugmentOp::kSolarize: return solarize(image, whole);
    case AugmentOp::kSolarizeAdd: return solarize_add(image, whole);
    case AugmentOp::kColor: return adjust_color(image, argument);
    case AugmentOp::kContrast: return adjust_contrast(image, argument);
    case AugmentOp::kBrightness: return adjust_brightness(image, argument);
    case AugmentOp::kSharpness: return adjust_sharpness(image, argument);
    case AugmentOp::kShearX: return move({.b = argument});
    case AugmentOp::kShearY: return move({.d = argument});
    case AugmentOp::kTranslateX: return move({.c = argument * image.width});
    case AugmentOp::kTranslateY: return move({.f = argument * image.height});
  }
}

void rand_augment(const RandAugment& options, Interpolation filter, const std::uint8_t* fill, Philox& random,
                  ItemScratch& scratch) {
  for (int layer = 0; layer < options.layers; ++layer) {
    const auto op = static_cast<AugmentOp>(random.below(kAugmentOps));
    if (!random.chance(options.probability)) continue;
    double magnitude = options.magnitude;
    if (options.magnitude_std > 0.0) magnitude += options.magnitude_std * random.normal();
    magnitude = std::clamp(magnitude, 0.0, kTop);
    const bool negate = directed(op, options.increasing) && random.chance(0.5);
    const Interpolation one = filter != Interpolation::kRandom ? filter
                              : random.chance(0.5)             ? Interpolation::kBilinear
                                                               : Interpolation::kBicubic;
    apply_op(op, op_argument(op, magnitude, options.increasing, negate), one, fill, scratch);
  }
}

}  // namespace mhla
