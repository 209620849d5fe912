#include "mhla/data/image_output.h"

#include <algorithm>
#include <cmath>

#include "mhla/core/error.h"
#include "mhla/core/run_failed.h"

namespace mhla {
namespace {

struct ToU8Name {
  const char* name;
  ToU8 kind;
};
constexpr ToU8Name kNames[] = {{"adm", ToU8::kAdm}, {"save_image", ToU8::kSaveImage}, {"diffusers", ToU8::kDiffusers}};

float level_of(float x, ToU8 kind) {
  switch (kind) {
    case ToU8::kAdm: return 127.5f * x + 128.0f;
    case ToU8::kSaveImage: return (std::clamp(x, -1.0f, 1.0f) + 1.0f) / 2.0f * 255.0f + 0.5f;
    case ToU8::kDiffusers: return std::nearbyint(std::clamp(x / 2.0f + 0.5f, 0.0f, 1.0f) * 255.0f);
  }
  return 0.0f;
}

}  // namespace

ToU8 to_u8_called(const std::string& name) {
  std::string known;
  for (const ToU8Name& one : kNames) {
    if (name == one.name) return one.kind;
    known += str(known.empty() ? "" : ", ", one.name);
  }
  fail("to_u8: '", name, "' is unknown, expected one of ", known);
}

void to_u8(std::span<const float> values, ToU8 kind, std::uint8_t* out) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(values[i])) throw RunFailed(str("to_u8: value ", i, " of ", values.size(), " is NaN"));
    out[i] = static_cast<std::uint8_t>(std::clamp(level_of(values[i], kind), 0.0f, 255.0f));
  }
}

Image to_image(std::span<const float> planes, int channels, int height, int width, ToU8 kind) {
  Image image;
  if ((channels != 1 && channels != 3) || height < 1 || width < 1)
    fail("to_image: ", channels, " x ", height, " x ", width, ", expected 1 or 3 channels of at least one pixel");
  image.resize(height, width, channels);
  if (planes.size() != image.pixels.size())
    fail("to_image: ", planes.size(), " values, expected ", channels, " x ", height, " x ", width);
  std::vector<std::uint8_t> levels(planes.size());
  to_u8(planes, kind, levels.data());
  const std::size_t plane = levels.size() / static_cast<std::size_t>(channels);
  for (std::size_t i = 0; i < plane; ++i)
    for (std::size_t c = 0; c < static_cast<std::size_t>(channels); ++c)
      image.pixels[i * static_cast<std::size_t>(channels) + c] = levels[c * plane + i];
  return image;
}

Image image_grid(std::span<const Image> images, int columns, int padding) {
  if (images.empty()) fail("image_grid: no images");
  if (columns < 1 || padding < 0)
    fail("image_grid: ", columns, " columns and a padding of ", padding, ", expected at least 1 and 0");
  const Image& first = images.front();
  for (const Image& image : images) {
    if (image.height != first.height || image.width != first.width || image.channels != first.channels)
      fail("image_grid: an image is ", image.height, " x ", image.width, " x ", image.channels, ", expected ",
           first.height, " x ", first.width, " x ", first.channels, " as the first");
  }
  const auto count = static_cast<std::int64_t>(images.size());
  const std::int64_t across = std::min<std::int64_t>(columns, count), down = (count + across - 1) / across;
  const std::int64_t height = down * (first.height + padding) + padding;
  const std::int64_t width = across * (first.width + padding) + padding;
  if (height > 65500 || width > 65500 || height * width > (std::int64_t{1} << 27))
    fail("image_grid: ", height, " x ", width, " pixels, expected sides up to 65500 and 2^27 pixels");
  Image grid;
  grid.resize(static_cast<int>(height), static_cast<int>(width), first.channels);
  std::fill(grid.pixels.begin(), grid.pixels.end(), std::uint8_t{0});
  for (std::int64_t i = 0; i < count; ++i) {
    const auto top = static_cast<int>(padding + i / across * (first.height + padding));
    const auto left = static_cast<int>(padding + i % across * (first.width + padding));
    const Image& image = images[static_cast<std::size_t>(i)];
    for (int y = 0; y < image.height; ++y)
      std::copy(image.row(y), image.row(y) + static_cast<std::ptrdiff_t>(image.width) * image.channels,
                grid.row(top + y) + static_cast<std::ptrdiff_t>(left) * image.channels);
  }
  return grid;
}

}  // namespace mhla
