#include "mhla/data/images_recorded.h"

#include <cmath>

#include "mhla/core/error.h"
#include "mhla/core/limits.h"
#include "mhla/data/adm_crop.h"
#include "mhla/data/image_output.h"

namespace mhla {
namespace {

// Bytes of values that must be bytes.
std::vector<std::uint8_t> bytes_of(const RecordedArray& array, const char* name) {
  std::vector<std::uint8_t> bytes;
  for (const double value : array.values) {
    if (!(value >= 0.0 && value <= 255.0 && value == std::floor(value)))
      fail(name, " has the value ", value, ", expected bytes");
    bytes.push_back(static_cast<std::uint8_t>(value));
  }
  return bytes;
}

RecordedArray array_of(std::vector<std::int64_t> shape, const std::vector<std::uint8_t>& bytes) {
  return {std::move(shape), {bytes.begin(), bytes.end()}};
}

Image blank(std::int64_t height, std::int64_t width, std::int64_t channels, const char* name) {
  if ((channels != 1 && channels != 3) || height < 1 || width < 1 || height > limits::kImage.most ||
      width > limits::kImage.most)
    fail(name, " has images of ", height, " x ", width, " x ", channels, ", expected 1 or 3 channels");
  Image image;
  image.resize(static_cast<int>(height), static_cast<int>(width), static_cast<int>(channels));
  return image;
}

RecordedArrays center_crop(const RecordedArraysCase& c) {
  c.expect_keys({"size", "pillow"});
  const RecordedArray& given = c.array("in.image", 3, "[rows, columns, channels]");
  Image image = blank(given.shape[0], given.shape[1], given.shape[2], "in.image");
  image.pixels = bytes_of(given, "in.image");
  const std::int64_t size = c.integer("size");
  expect_within("metadata", "size", size, limits::kImage);
  const Image crop = adm_crop(image, static_cast<int>(size));
  return {{"out.image", array_of({crop.height, crop.width, crop.channels}, crop.pixels)}};
}

RecordedArrays to_uint8(const RecordedArraysCase& c) {
  c.expect_keys({});
  const RecordedArray& given = c.array("in.x", 0, "");
  const std::vector<float> values(given.values.begin(), given.values.end());
  RecordedArrays results;
  for (const char* name : {"adm", "save_image", "diffusers"}) {
    std::vector<std::uint8_t> levels(values.size());
    to_u8(values, to_u8_called(name), levels.data());
    results[str("out.", name)] = array_of(given.shape, levels);
  }
  return results;
}

// Planes [channels, height, width] from and to pixels.
std::size_t plane_place(const Image& image, std::size_t pixel) {
  const auto channels = static_cast<std::size_t>(image.channels);
  return pixel % channels * (image.pixels.size() / channels) + pixel / channels;
}

RecordedArrays grid(const RecordedArraysCase& c) {
  c.expect_keys({"nrow", "padding", "layout"});
  const RecordedArray& given = c.array("in.images", 4, "[N, channels, rows, columns]");
  const std::vector<std::uint8_t> bytes = bytes_of(given, "in.images");
  std::vector<Image> images;
  for (std::int64_t i = 0; i < given.shape[0]; ++i) {
    Image image = blank(given.shape[2], given.shape[3], given.shape[1], "in.images");
    const std::size_t first = static_cast<std::size_t>(i) * image.pixels.size();
    for (std::size_t p = 0; p < image.pixels.size(); ++p) image.pixels[p] = bytes[first + plane_place(image, p)];
    images.push_back(std::move(image));
  }
  const std::int64_t columns = c.integer("nrow");
  const double padding = c.number("padding", 2);
  if (columns > limits::kImage.most || !(padding >= 0 && padding <= 1024 && padding == std::floor(padding)))
    fail("metadata 'nrow' is ", columns, " and 'padding' ", padding, ", expected a grid of at most ",
         limits::kImage.most, " columns and 0 to 1024 pixels");
  const Image sheet = image_grid(images, static_cast<int>(columns), static_cast<int>(padding));
  std::vector<std::uint8_t> planes(sheet.pixels.size());
  for (std::size_t p = 0; p < planes.size(); ++p) planes[plane_place(sheet, p)] = sheet.pixels[p];
  return {{"out.grid", array_of({sheet.channels, sheet.height, sheet.width}, planes)}};
}

}  // namespace

RecordedArraysFamilies images_recorded() {
  return {{"center_crop", center_crop}, {"to_uint8", to_uint8}, {"image_grid", grid}};
}

}  // namespace mhla
