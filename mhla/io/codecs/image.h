// Images as files: JPEG, PNG, BMP and, with the libraries that this build found, WebP, GIF and TIFF in, 8-bit grey or
// RGB out. Whatever the file holds (palette, 16 bits, alpha, CMYK, interlaced, progressive) becomes one of the two:
// alpha is dropped, as PIL's convert("RGB") does. Of several images in a file the first is taken. A damaged file is an
// Error that opens with `label`; nothing is guessed for pixels that are missing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mhla {

struct Image {
  int height = 0;
  int width = 0;
  int channels = 0;                  // 1 grey, 3 RGB
  std::vector<std::uint8_t> pixels;  // [height, width, channels]

  [[nodiscard]] std::uint8_t* row(int y) { return pixels.data() + offset(y); }
  [[nodiscard]] const std::uint8_t* row(int y) const { return pixels.data() + offset(y); }
  void resize(int new_height, int new_width, int new_channels);  // the pixels are left undefined
  friend bool operator==(const Image&, const Image&) = default;

 private:
  [[nodiscard]] std::size_t offset(int y) const {
    return static_cast<std::size_t>(y) * static_cast<std::size_t>(width) * static_cast<std::size_t>(channels);
  }
};

// A few bytes of a file can ask for gigabytes: what is larger is refused before it is decoded.
struct ImageLimits {
  std::uint64_t max_bytes = std::uint64_t{256} << 20;   // of the file
  std::uint64_t max_pixels = std::uint64_t{1} << 27;    // height * width: 384 MiB as RGB
  std::uint64_t max_memory = std::uint64_t{512} << 20;  // what the decoder may take beside its result
};

// By the first bytes, whatever the file is called. `image` keeps its memory from call to call.
void decode_image(std::span<const std::byte> bytes, const std::string& label, Image& image,
                  const ImageLimits& limits = {});
Image read_image(const std::filesystem::path& path, const ImageLimits& limits = {});

// The formats that are known, readable or not.
using ImageDecoder = void (*)(std::span<const std::byte> bytes, const std::string& label, Image& image,
                              const ImageLimits& limits);
struct ImageFormat {
  std::string_view name;
  std::array<std::string_view, 2> endings;  // of file names, in small letters; the second may be empty
  std::string_view library;                 // that reads it
  bool (*matches)(std::span<const std::byte> bytes);
  ImageDecoder decode;  // null: the library was missing when mhla was built
};
std::span<const ImageFormat> image_formats();
const ImageFormat* format_of_ending(std::string_view ending);  // ".jpg"; null: none is called so
std::string readable_formats(const char* last = " or ");       // by this build: "JPEG, PNG or BMP"
std::string readable_endings();                                // ".jpg, .jpeg, .png or .bmp"

std::vector<std::byte> encode_jpeg(const Image& image, int quality = 90);  // 1 to 100
std::vector<std::byte> encode_png(const Image& image);

// Grey of one RGB pixel: the weights of ITU-R 601 in 16-bit fixed point, rounded.
inline std::uint8_t luma(const std::uint8_t* rgb) {
  return static_cast<std::uint8_t>((rgb[0] * 19595u + rgb[1] * 38470u + rgb[2] * 7471u + 0x8000u) >> 16);
}

// Grey to RGB by copying, RGB to grey by luma().
void convert_channels(Image& image, int channels);

}  // namespace mhla
