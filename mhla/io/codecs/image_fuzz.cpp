// Any bytes are either refused with an Error that names them, or an image that PNG keeps exactly.
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "mhla/core/error.h"
#include "mhla/io/codecs/image.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const mhla::ImageLimits limits{.max_bytes = 1 << 20, .max_pixels = 1 << 18, .max_memory = 64 << 20};
  mhla::Image image, again;
  try {
    decode_image(std::as_bytes(std::span(data, size)), "fuzz", image, limits);
  } catch (const mhla::Error& error) {
    if (std::strncmp(error.what(), "fuzz: ", 6) != 0) std::abort();
    return 0;
  }
  decode_image(encode_png(image), "written", again);
  if (!(again == image)) std::abort();
  return 0;
}
