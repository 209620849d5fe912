#include "mhla/train/data/resample.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace mhla {
namespace {

constexpr int kBits = 22;  // 8 bits of pixel and 2 for overshoot stay below 2^32

double bilinear(double x) {
  x = std::abs(x);
  return x < 1.0 ? 1.0 - x : 0.0;
}

double bicubic(double x) {  // Keys, a = -1/2
  x = std::abs(x);
  if (x < 1.0) return (1.5 * x - 2.5) * x * x + 1.0;
  if (x < 2.0) return ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0;
  return 0.0;
}

// For each of `to` outputs over `from` inputs: the first input that counts and `taps` weights, zero behind the last.
int make_weights(int from, int to, Interpolation filter, std::vector<int>& first, std::vector<std::int32_t>& weights) {
  const double step = static_cast<double>(from) / to;
  const double stretch = std::max(step, 1.0);  // shrinking widens the filter: no aliasing
  const double reach = (filter == Interpolation::kBicubic ? 2.0 : 1.0) * stretch;
  const int taps = static_cast<int>(std::ceil(reach)) * 2 + 1;
  first.assign(static_cast<std::size_t>(to), 0);
  weights.assign(static_cast<std::size_t>(to) * static_cast<std::size_t>(taps), 0);
  std::vector<double> row(static_cast<std::size_t>(taps));
  for (int i = 0; i < to; ++i) {
    const double center = (i + 0.5) * step;
    const int begin = std::max(0, static_cast<int>(center - reach + 0.5));
    const int end = std::min(from, static_cast<int>(center + reach + 0.5));
    double sum = 0.0;
    for (int j = begin; j < end; ++j) {
      const double at = (j - center + 0.5) / stretch;
      const double weight = filter == Interpolation::kBicubic ? bicubic(at) : bilinear(at);
      row[static_cast<std::size_t>(j - begin)] = weight;
      sum += weight;
    }
    first[static_cast<std::size_t>(i)] = begin;
    std::int32_t* out = weights.data() + static_cast<std::ptrdiff_t>(i) * taps;
    for (int j = 0; j < end - begin; ++j)
      out[j] = static_cast<std::int32_t>(std::lround(row[static_cast<std::size_t>(j)] / sum * (1 << kBits)));
  }
  return taps;
}

std::uint8_t rounded(std::int32_t sum) {
  const int value = sum >> kBits;
  return static_cast<std::uint8_t>(value < 0 ? 0 : value > 255 ? 255 : value);
}

template <int kChannels>
void resize_row(const std::uint8_t* in, int from, int to, int taps, const int* first, const std::int32_t* weights,
                std::uint8_t* out) {
  for (int x = 0; x < to; ++x, weights += taps, out += kChannels) {
    std::int32_t sum[kChannels];
    for (std::int32_t& s : sum) s = 1 << (kBits - 1);
    const int count = std::min(taps, from - first[x]);
    const std::uint8_t* pixel = in + static_cast<std::ptrdiff_t>(first[x]) * kChannels;
    for (int j = 0; j < count; ++j, pixel += kChannels)
      for (int c = 0; c < kChannels; ++c) sum[c] += pixel[c] * weights[j];
    for (int c = 0; c < kChannels; ++c) out[c] = rounded(sum[c]);
  }
}

// One output row from `count` rows of `width` bytes each.
void blend_rows(const std::uint8_t* in, std::ptrdiff_t width, int count, const std::int32_t* weights,
                std::vector<std::int32_t>& sums, std::uint8_t* out) {
  sums.assign(static_cast<std::size_t>(width), 1 << (kBits - 1));
  for (int j = 0; j < count; ++j, in += width) {
    const std::int32_t weight = weights[j];
    if (weight == 0) continue;
    for (std::ptrdiff_t i = 0; i < width; ++i) sums[static_cast<std::size_t>(i)] += in[i] * weight;
  }
  for (std::ptrdiff_t i = 0; i < width; ++i) out[i] = rounded(sums[static_cast<std::size_t>(i)]);
}

std::uint8_t clipped(double value) {
  return static_cast<std::uint8_t>(value <= 0.0 ? 0.0 : value >= 255.0 ? 255.0 : value);
}

// Through four values at -1, 0, 1, 2: cubic convolution with a = -1, PIL's choice for transforms.
double cubic(const double* v, double t) {
  const double p2 = v[2] - v[0], p3 = 2.0 * (v[0] - v[1]) + v[2] - v[3], p4 = v[1] - v[0] + v[3] - v[2];
  return v[1] + t * (p2 + t * (p3 + t * p4));
}

}  // namespace

void resize_image(const Image& in, const Box& box, int height, int width, Interpolation filter, Image& out,
                  ResampleScratch& scratch) {
  const int channels = in.channels;
  const int taps_x = make_weights(box.width, width, filter, scratch.first_x, scratch.weights_x);
  const int taps_y = make_weights(box.height, height, filter, scratch.first_y, scratch.weights_y);
  const std::ptrdiff_t row_bytes = static_cast<std::ptrdiff_t>(width) * channels;
  scratch.rows.resize(static_cast<std::size_t>(box.height) * static_cast<std::size_t>(row_bytes));
  for (int y = 0; y < box.height; ++y) {
    const std::uint8_t* from = in.row(box.top + y) + static_cast<std::ptrdiff_t>(box.left) * channels;
    std::uint8_t* to = scratch.rows.data() + y * row_bytes;
    const auto resize_one = channels == 1 ? resize_row<1> : resize_row<3>;
    resize_one(from, box.width, width, taps_x, scratch.first_x.data(), scratch.weights_x.data(), to);
  }
  out.resize(height, width, channels);
  for (int y = 0; y < height; ++y) {
    const int first = scratch.first_y[static_cast<std::size_t>(y)];
    blend_rows(scratch.rows.data() + first * row_bytes, row_bytes, std::min(taps_y, box.height - first),
               scratch.weights_y.data() + static_cast<std::ptrdiff_t>(y) * taps_y, scratch.sums, out.row(y));
  }
}

void crop_image(const Image& in, const Box& box, Image& out) {
  out.resize(box.height, box.width, in.channels);
  for (int y = 0; y < box.height; ++y) {
    const std::uint8_t* from = in.row(box.top + y) + static_cast<std::ptrdiff_t>(box.left) * in.channels;
    std::copy(from, from + static_cast<std::ptrdiff_t>(box.width) * in.channels, out.row(y));
  }
}

void pad_image(const Image& in, int height, int width, Image& out) {
  out.resize(height, width, in.channels);
  std::fill(out.pixels.begin(), out.pixels.end(), std::uint8_t{0});
  const int top = (height - in.height) / 2, left = (width - in.width) / 2;
  for (int y = 0; y < in.height; ++y)
    std::copy(in.row(y), in.row(y) + static_cast<std::ptrdiff_t>(in.width) * in.channels,
              out.row(top + y) + static_cast<std::ptrdiff_t>(left) * in.channels);
}

void flip_image(Image& image) {
  for (int y = 0; y < image.height; ++y) {
    std::uint8_t* row = image.row(y);
    for (int x = 0, other = image.width - 1; x < other; ++x, --other)
      for (int c = 0; c < image.channels; ++c) std::swap(row[x * image.channels + c], row[other * image.channels + c]);
  }
}

void shift_image(const Image& in, int down, int right, Image& out) {
  out.resize(in.height, in.width, in.channels);
  std::fill(out.pixels.begin(), out.pixels.end(), std::uint8_t{0});
  const int columns = in.width - std::abs(right);
  for (int y = std::max(0, down); y < std::min(in.height, in.height + down) && columns > 0; ++y) {
    const std::uint8_t* from = in.row(y - down) + static_cast<std::ptrdiff_t>(std::max(0, -right)) * in.channels;
    std::copy(from, from + static_cast<std::ptrdiff_t>(columns) * in.channels,
              out.row(y) + static_cast<std::ptrdiff_t>(std::max(0, right)) * in.channels);
  }
}

Affine rotation(double degrees, int height, int width) {
  const double angle = -degrees * 3.14159265358979323846 / 180.0;
  const double cosine = std::cos(angle), sine = std::sin(angle);
  const double cx = width / 2.0, cy = height / 2.0;
  return {cosine, sine, cx - cosine * cx - sine * cy, -sine, cosine, cy + sine * cx - cosine * cy};
}

void transform_image(const Image& in, const Affine& map, Interpolation filter, const std::uint8_t* fill, Image& out) {
  out.resize(in.height, in.width, in.channels);
  const int channels = in.channels;
  const bool cubics = filter == Interpolation::kBicubic;
  const int before = cubics ? 1 : 0, count = cubics ? 4 : 2;
  for (int y = 0; y < in.height; ++y)
    for (int x = 0; x < in.width; ++x) {
      std::uint8_t* pixel = out.row(y) + static_cast<std::ptrdiff_t>(x) * channels;
      const double at_x = map.a * (x + 0.5) + map.b * (y + 0.5) + map.c;
      const double at_y = map.d * (x + 0.5) + map.e * (y + 0.5) + map.f;
      if (!(at_x >= 0.0 && at_x < in.width && at_y >= 0.0 && at_y < in.height)) {
        std::copy(fill, fill + channels, pixel);
        continue;
      }
      const double left = std::floor(at_x - 0.5), top = std::floor(at_y - 0.5);
      const double dx = at_x - 0.5 - left, dy = at_y - 0.5 - top;
      int columns[4];
      for (int i = 0; i < count; ++i)
        columns[i] = channels * std::clamp(static_cast<int>(left) + i - before, 0, in.width - 1);
      for (int c = 0; c < channels; ++c) {
        double lines[4];
        for (int j = 0; j < count; ++j) {
          const std::uint8_t* row = in.row(std::clamp(static_cast<int>(top) + j - before, 0, in.height - 1)) + c;
          double values[4];
          for (int i = 0; i < count; ++i) values[i] = row[columns[i]];
          lines[j] = cubics ? cubic(values, dx) : values[0] + dx * (values[1] - values[0]);
        }
        pixel[c] = clipped(cubics ? cubic(lines, dy) : lines[0] + dy * (lines[1] - lines[0]));
      }
    }
}

}  // namespace mhla
