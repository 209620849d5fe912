#include "mhla/data/adm_crop.h"

#include <algorithm>
#include <cmath>

#include "mhla/core/error.h"
#include "mhla/core/limits.h"

namespace mhla {
namespace {

constexpr int kBits = 22;  // of a weight: 32 less 8 for the pixel and 2 for sums beyond it

struct Filter {
  double support;
  double (*weight)(double);
};

constexpr Filter kBox{0.5, [](double x) { return x > -0.5 && x <= 0.5 ? 1.0 : 0.0; }};
constexpr Filter kBicubic{2.0, [](double x) {
                            constexpr double a = -0.5;
                            x = std::abs(x);
                            if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
                            return x < 2.0 ? (((x - 5.0) * x + 8.0) * x - 4.0) * a : 0.0;
                          }};

struct Taps {
  int first = 0;
  std::vector<std::int32_t> weights;
};

// For each of `to` outputs over `from` inputs.
std::vector<Taps> taps_of(int from, int to, const Filter& filter) {
  const double step = static_cast<double>(from) / to, stretch = std::max(step, 1.0);
  const double reach = filter.support * stretch;
  std::vector<Taps> all(static_cast<std::size_t>(to));
  std::vector<double> row;
  for (int i = 0; i < to; ++i) {
    const double center = (i + 0.5) * step;
    const int begin = std::max(0, static_cast<int>(std::floor(center - reach + 0.5)));
    const int end = std::min(from, static_cast<int>(std::floor(center + reach + 0.5)));
    row.clear();
    double sum = 0.0;
    for (int j = begin; j < end; ++j) {
      row.push_back(filter.weight((j - center + 0.5) * (1.0 / stretch)));
      sum += row.back();
    }
    Taps& taps = all[static_cast<std::size_t>(i)];
    taps.first = begin;
    for (const double weight : row) {
      const double scaled = (sum != 0.0 ? weight / sum : weight) * (1 << kBits);
      taps.weights.push_back(static_cast<std::int32_t>(scaled < 0.0 ? scaled - 0.5 : scaled + 0.5));
    }
  }
  return all;
}

// One pass: `stride` bytes between the values that are summed.
std::uint8_t sum_of(const std::uint8_t* from, std::ptrdiff_t stride, const Taps& taps) {
  std::int32_t sum = 1 << (kBits - 1);
  for (const std::int32_t weight : taps.weights) {
    sum += weight * *from;
    from += stride;
  }
  return static_cast<std::uint8_t>(std::clamp(sum >> kBits, 0, 255));
}

Image resized(const Image& in, int height, int width, const Filter& filter) {
  Image across = in;
  const int channels = in.channels;
  if (width != in.width) {
    const std::vector<Taps> taps = taps_of(in.width, width, filter);
    across.resize(in.height, width, channels);
    for (int y = 0; y < in.height; ++y)
      for (int x = 0; x < width; ++x)
        for (int c = 0; c < channels; ++c) {
          const Taps& here = taps[static_cast<std::size_t>(x)];
          across.row(y)[x * channels + c] = sum_of(in.row(y) + here.first * channels + c, channels, here);
        }
  }
  if (height == in.height) return across;
  const std::vector<Taps> taps = taps_of(in.height, height, filter);
  Image out;
  out.resize(height, width, channels);
  const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(width) * channels;
  for (int y = 0; y < height; ++y)
    for (std::ptrdiff_t i = 0; i < row; ++i) {
      const Taps& here = taps[static_cast<std::size_t>(y)];
      out.row(y)[i] = sum_of(across.row(here.first) + i, row, here);
    }
  return out;
}

}  // namespace

Image adm_crop(const Image& image, int size) {
  expect_within("adm_crop", "size", size, limits::kImage);
  if (image.height < 1 || image.width < 1)
    fail("adm_crop: image is ", image.height, " x ", image.width, ", expected at least one pixel");
  Image now = image;
  while (std::min(now.height, now.width) >= 2 * size) now = resized(now, now.height / 2, now.width / 2, kBox);
  const double scale = static_cast<double>(size) / std::min(now.height, now.width);
  // Python's round: halves to even.
  now = resized(now, static_cast<int>(std::nearbyint(now.height * scale)),
                static_cast<int>(std::nearbyint(now.width * scale)), kBicubic);
  const int top = (now.height - size) / 2, left = (now.width - size) / 2;
  Image out;
  out.resize(size, size, now.channels);
  for (int y = 0; y < size; ++y) {
    const std::uint8_t* from = now.row(top + y) + static_cast<std::ptrdiff_t>(left) * now.channels;
    std::copy(from, from + static_cast<std::ptrdiff_t>(size) * now.channels, out.row(y));
  }
  return out;
}

}  // namespace mhla
