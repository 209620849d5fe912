// The centre crop that ADM, DiT and the reference images of FID are made with, bit for bit as Pillow computes it:
// halved with a box filter while the shorter side is at least 2 * size, then a bicubic filter (a = -1/2, as wide as the
// shrink factor) until it is `size`, then the middle. Pillow works with weights of 22 bits and rounds to 8 bits after
// rows and again after columns; resample.h, which sums floats, may differ from it by one level.
#pragma once

#include "mhla/io/codecs/image.h"

namespace mhla {

// size x size of any image of 1 or 3 channels.
Image adm_crop(const Image& image, int size);

}  // namespace mhla
