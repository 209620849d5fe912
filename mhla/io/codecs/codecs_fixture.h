// Images to write and read again: a smooth picture that JPEG keeps well, and one of noise.
#pragma once

#include <cstdint>

#include "mhla/io/codecs/image.h"
#include "mhla/testing/random.h"

namespace mhla {

inline Image smooth_image(int height, int width, int channels) {
  Image image;
  image.resize(height, width, channels);
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      for (int c = 0; c < channels; ++c)
        image.row(y)[x * channels + c] = static_cast<std::uint8_t>((c == 0   ? 40 + 150 * x / width
                                                                    : c == 1 ? 60 + 120 * y / height
                                                                             : 50 + 70 * (x + y) / (width + height)));
  return image;
}

inline Image noise_image(int height, int width, int channels, std::uint64_t seed) {
  Image image;
  image.resize(height, width, channels);
  Random random(seed);
  for (std::uint8_t& pixel : image.pixels) pixel = static_cast<std::uint8_t>(random.below(256));
  return image;
}

inline int worst_difference(const Image& a, const Image& b) {
  if (a.height != b.height || a.width != b.width || a.channels != b.channels) return 256;
  int worst = 0;
  for (std::size_t i = 0; i < a.pixels.size(); ++i) {
    const int difference = a.pixels[i] - b.pixels[i];
    worst = difference > worst ? difference : -difference > worst ? -difference : worst;
  }
  return worst;
}

}  // namespace mhla
