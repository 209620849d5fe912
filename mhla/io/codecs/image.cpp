#include "mhla/io/codecs/image.h"

#include "mhla/core/error.h"
#include "mhla/io/codecs/image_checks.h"
#include "mhla/io/file.h"

namespace mhla {
namespace {

std::string first_bytes(std::span<const std::byte> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < bytes.size() && i < 4; ++i) {
    const int value = std::to_integer<int>(bytes[i]);
    text += str(i == 0 ? "" : " ", kDigits[value >> 4], kDigits[value & 15]);
  }
  return text;
}

}  // namespace

void Image::resize(int new_height, int new_width, int new_channels) {
  height = new_height;
  width = new_width;
  channels = new_channels;
  pixels.resize(offset(height));
}

void check_image_file(std::size_t bytes, const std::string& label, const ImageLimits& limits) {
  if (bytes > limits.max_bytes)
    fail(label, ": ", bytes, " bytes, more than the ", limits.max_bytes, " that an image may have");
}

void check_image_size(std::uint64_t height, std::uint64_t width, const std::string& label, const ImageLimits& limits) {
  // Both fit 32 bits in every format, so the product fits 64.
  if (height == 0 || width == 0 || height > kMaxImageSide || width > kMaxImageSide ||
      height * width > limits.max_pixels)
    fail(label, ": ", height, " x ", width, " pixels, expected 1 to ", limits.max_pixels, ", a side up to ",
         kMaxImageSide);
}

void check_encodable(const Image& image, const char* caller) {
  if (image.channels != 1 && image.channels != 3)
    fail(caller, ": image has ", image.channels, " channels, expected 1 or 3");
  if (image.height < 1 || image.width < 1 || image.height > static_cast<int>(kMaxImageSide) ||
      image.width > static_cast<int>(kMaxImageSide))
    fail(caller, ": image is ", image.height, " x ", image.width, ", expected sides from 1 to ", kMaxImageSide);
  const std::size_t wanted = static_cast<std::size_t>(image.height) * static_cast<std::size_t>(image.width) *
                             static_cast<std::size_t>(image.channels);
  if (image.pixels.size() != wanted)
    fail(caller, ": image has ", image.pixels.size(), " bytes of pixels, expected ", wanted);
}

void decode_image(std::span<const std::byte> bytes, const std::string& label, Image& image, const ImageLimits& limits) {
  for (const ImageFormat& format : image_formats()) {
    if (!format.matches(bytes)) continue;
    if (format.decode != nullptr) return format.decode(bytes, label, image, limits);
    fail(label, ": is a ", format.name, " image, which this build cannot read: it was made without ", format.library);
  }
  if (bytes.empty()) fail(label, ": is empty, expected a ", readable_formats(), " image");
  fail(label, ": begins with ", first_bytes(bytes), ", expected a ", readable_formats(), " image");
}

Image read_image(const std::filesystem::path& path, const ImageLimits& limits) {
  Image image;
  decode_image(read_file(path, limits.max_bytes), path.string(), image, limits);
  return image;
}

void convert_channels(Image& image, int channels) {
  if (image.channels == channels) return;
  if (image.channels == 1 && channels == 3) {
    std::vector<std::uint8_t> rgb(image.pixels.size() * 3);
    for (std::size_t i = 0; i < image.pixels.size(); ++i) {
      rgb[3 * i] = rgb[3 * i + 1] = rgb[3 * i + 2] = image.pixels[i];
    }
    image.pixels = std::move(rgb);
  } else if (image.channels == 3 && channels == 1) {
    const std::size_t count = image.pixels.size() / 3;
    for (std::size_t i = 0; i < count; ++i) image.pixels[i] = luma(image.pixels.data() + 3 * i);
    image.pixels.resize(count);
  } else {
    fail("convert_channels: ", image.channels, " to ", channels, " channels, expected 1 or 3");
  }
  image.channels = channels;
}

}  // namespace mhla
