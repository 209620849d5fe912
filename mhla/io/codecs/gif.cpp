// The first frame of a GIF through giflib, on a canvas of the background's colour. A transparent pixel shows the colour
// it has in the palette, as alpha is dropped elsewhere.
#ifdef MHLA_GIF
#include "mhla/io/codecs/gif_file.h"

namespace mhla {

void decode_gif(std::span<const std::byte> bytes, const std::string& label, Image& image, const ImageLimits& limits) {
  check_image_file(bytes.size(), label, limits);
  GifFile gif(bytes, label);
  if (!gif.find_frame([](int, const GifByteType*) {})) fail(label, ": damaged GIF: it has no frame");
  check_image_size(static_cast<std::uint64_t>(gif.height()), static_cast<std::uint64_t>(gif.width()), label, limits);
  image.resize(gif.height(), gif.width(), 3);
  fill(image, gif.background());
  gif.paint(image, /*transparent=*/-1);
}

}  // namespace mhla
#endif
