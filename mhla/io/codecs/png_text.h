// Text that a PNG carries beside its pixels: the settings of a sampler, a prompt; and whether a file is undamaged.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mhla/io/codecs/image.h"

namespace mhla {

// Keys have 1 to 79 ASCII characters and may repeat, values are UTF-8 without a zero byte. At most 60 of them.
using ImageText = std::vector<std::pair<std::string, std::string>>;

std::vector<std::byte> encode_png(const Image& image, const ImageText& text);
// The texts before the pixels, where encode_png and Pillow put them. Pixels are not decoded.
ImageText decode_png_text(std::span<const std::byte> bytes, const std::string& label, const ImageLimits& limits = {});
// Whether these are the bytes of one PNG from its first to its last, by the checksum of every part. Nothing is decoded.
bool is_whole_png(std::span<const std::byte> bytes);

}  // namespace mhla
