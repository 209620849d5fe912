// What RandAugment and colour jitter do to pixel values, in place, with PIL's rounding. A factor blends with something
// plain: 0 gives that, 1 the image, more exaggerates.
#pragma once

#include "mhla/io/codecs/image.h"

namespace mhla {

void adjust_brightness(Image& image, double factor);  // plain: black
void adjust_contrast(Image& image, double factor);    // plain: the mean grey
void adjust_color(Image& image, double factor);       // plain: the image in grey; grey images stay
void adjust_sharpness(Image& image,
                      double factor);  // plain: smoothed by [1 1 1; 1 5 1; 1 1 1] / 13, borders as they are

void stretch_contrast(Image& image);  // per channel, smallest and largest value to 0 and 255 (autocontrast)
void equalize(Image& image);          // per channel, a flat histogram
void invert(Image& image);
void posterize(Image& image, int bits);      // keeps the upper bits, 0 to 8
void solarize(Image& image, int threshold);  // inverts values from the threshold on
void solarize_add(Image& image, int add);    // adds to values below 128, up to 255

}  // namespace mhla
