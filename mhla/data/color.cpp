#include "mhla/data/color.h"

#include <algorithm>
#include <array>

namespace mhla {
namespace {

using Table = std::array<std::uint8_t, 256>;
using Histogram = std::array<std::int64_t, 256>;

std::uint8_t clipped(double value) {  // toward zero, as PIL has it
  return static_cast<std::uint8_t>(value <= 0.0 ? 0.0 : value >= 255.0 ? 255.0 : value);
}

std::uint8_t blend(int plain, int value, float factor) {
  return clipped(static_cast<float>(plain) + factor * static_cast<float>(value - plain));
}

template <class Function>
Table table_of(const Function& function) {
  Table table;
  for (int value = 0; value < 256; ++value) table[static_cast<std::size_t>(value)] = function(value);
  return table;
}

void look_up(Image& image, const Table& table) {
  for (std::uint8_t& pixel : image.pixels) pixel = table[pixel];
}

// A table per channel, made from the channel's histogram.
template <class MakeTable>
void look_up_by_channel(Image& image, const MakeTable& make_table) {
  const auto step = static_cast<std::size_t>(image.channels);
  for (std::size_t c = 0; c < step; ++c) {
    Histogram counts{};
    for (std::size_t i = c; i < image.pixels.size(); i += step) ++counts[image.pixels[i]];
    const Table table = make_table(counts);
    for (std::size_t i = c; i < image.pixels.size(); i += step) image.pixels[i] = table[image.pixels[i]];
  }
}

Table same() {
  return table_of([](int value) { return static_cast<std::uint8_t>(value); });
}

int mean_grey(const Image& image) {
  std::int64_t sum = 0;
  const auto step = static_cast<std::size_t>(image.channels);
  for (std::size_t i = 0; i < image.pixels.size(); i += step)
    sum += step == 1 ? image.pixels[i] : luma(image.pixels.data() + i);
  const auto count = static_cast<std::int64_t>(image.pixels.size() / step);
  return static_cast<int>((2 * sum + count) / (2 * count));  // rounded half up
}

}  // namespace

void adjust_brightness(Image& image, double factor) {
  look_up(image, table_of([&](int value) { return blend(0, value, static_cast<float>(factor)); }));
}

void adjust_contrast(Image& image, double factor) {
  const int grey = mean_grey(image);
  look_up(image, table_of([&](int value) { return blend(grey, value, static_cast<float>(factor)); }));
}

void adjust_color(Image& image, double factor) {
  if (image.channels == 1) return;
  for (std::size_t i = 0; i < image.pixels.size(); i += 3) {
    const int grey = luma(image.pixels.data() + i);
    for (std::size_t c = 0; c < 3; ++c)
      image.pixels[i + c] = blend(grey, image.pixels[i + c], static_cast<float>(factor));
  }
}

void adjust_sharpness(Image& image, double factor) {
  const Image from = image;
  const int step = image.channels;
  for (int y = 1; y + 1 < image.height; ++y) {
    const std::uint8_t *above = from.row(y - 1), *here = from.row(y), *below = from.row(y + 1);
    std::uint8_t* out = image.row(y);
    for (int i = step; i < (image.width - 1) * step; ++i) {
      const int sum = above[i - step] + above[i] + above[i + step] + here[i - step] + 5 * here[i] + here[i + step] +
                      below[i - step] + below[i] + below[i + step];
      out[i] = blend((2 * sum + 13) / 26, here[i], static_cast<float>(factor));  // the sum over 13, rounded
    }
  }
}

void stretch_contrast(Image& image) {
  look_up_by_channel(image, [](const Histogram& counts) {
    int low = 0, high = 255;
    while (low < 255 && counts[static_cast<std::size_t>(low)] == 0) ++low;
    while (high > 0 && counts[static_cast<std::size_t>(high)] == 0) --high;
    if (high <= low) return same();
    const double scale = 255.0 / (high - low), offset = -low * scale;
    return table_of([&](int value) { return clipped(value * scale + offset); });
  });
}

void equalize(Image& image) {
  look_up_by_channel(image, [](const Histogram& counts) {
    std::int64_t total = 0, last = 0, kinds = 0;
    for (const std::int64_t count : counts)
      if (count != 0) total += count, last = count, ++kinds;
    const std::int64_t step = kinds <= 1 ? 0 : (total - last) / 255;
    if (step == 0) return same();
    std::int64_t before = step / 2;
    return table_of([&](int value) {
      const std::int64_t level = before / step;
      before += counts[static_cast<std::size_t>(value)];
      return static_cast<std::uint8_t>(std::min<std::int64_t>(level, 255));
    });
  });
}

void invert(Image& image) {
  for (std::uint8_t& pixel : image.pixels) pixel = static_cast<std::uint8_t>(255 - pixel);
}

void posterize(Image& image, int bits) {
  const auto mask = static_cast<std::uint8_t>(0xff00 >> std::clamp(bits, 0, 8));
  for (std::uint8_t& pixel : image.pixels) pixel &= mask;
}

void solarize(Image& image, int threshold) {
  look_up(image,
          table_of([&](int value) { return static_cast<std::uint8_t>(value < threshold ? value : 255 - value); }));
}

void solarize_add(Image& image, int add) {
  look_up(image, table_of([&](int value) {
            return static_cast<std::uint8_t>(value < 128 ? std::min(255, value + add) : value);
          }));
}

}  // namespace mhla
