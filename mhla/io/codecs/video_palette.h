// A palette for one picture of a GIF: the colours themselves where there are at most 256, otherwise a median cut of
// their histogram, five bits a channel, and every cell of it takes the nearest colour. Private to this room.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "mhla/io/codecs/image.h"

namespace mhla {

struct Indexed {
  std::vector<std::array<std::uint8_t, 3>> palette;  // 1 to 256
  std::vector<std::uint8_t> pixels;                  // [height, width]
};
Indexed indexed(const Image& image);  // RGB

}  // namespace mhla
