// RandAugment on one image: which operations, how strong, and applying them.
#pragma once

#include <string>

#include "mhla/data/augment.h"
#include "mhla/data/philox.h"
#include "mhla/data/resample.h"

namespace mhla {

enum class AugmentOp : std::uint8_t {
  kAutoContrast,
  kEqualize,
  kInvert,
  kRotate,
  kPosterize,
  kSolarize,
  kSolarizeAdd,
  kColor,
  kContrast,
  kBrightness,
  kSharpness,
  kShearX,
  kShearY,
  kTranslateX,
  kTranslateY,
};
inline constexpr int kAugmentOps = 15;

// From a magnitude in [0, 10] to the operation's own argument: degrees, bits, threshold, factor, share of a side.
// `negate` turns a direction round where the operation has one.
double op_argument(AugmentOp op, double magnitude, bool increasing, bool negate);

// Both work on scratch.image. `fill` (one value per channel) comes in where geometry uncovers nothing.
void apply_op(AugmentOp op, double argument, Interpolation filter, const std::uint8_t* fill, ItemScratch& scratch);
void rand_augment(const RandAugment& options, Interpolation filter, const std::uint8_t* fill, Philox& random,
                  ItemScratch& scratch);

}  // namespace mhla
