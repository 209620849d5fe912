#include "mhla/data/resample.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace mhla {
namespace {

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
int make_weights(int from, int to, Interpolation filter, std::vector<int>& first, std::vector<float>& weights) {
  const double step = static_cast<double>(from) / to;
  const double stretch = std::max(step, 1.0);  // shrinking widens the filter: no aliasing
  const double reach = (filter == Interpolation::kBicubic ? 2.0 : 1.0) * stretch;
  const int taps = static_cast<int>(std::ceil(reach)) * 2 + 1;
  first.assign(static_cast<std::size_t>(to), 0);
  weights.assign(static_cast<std::size_t>(to) * static_cast<std::size_t>(taps), 0.0f);
  std::vector<double> row(static_cast<std::size_t>(taps));
  for (int i = 0; i < to; ++i) {
    const double center = (i + 0.5) * step;
    const int begin = std::max(0, static_cast<int>(std::floor(center - reach + 0.5)));
    const int end = std::min(from, static_cast<int>(std::floor(center + reach + 0.5)));
    double sum = 0.0;
    for (int j = begin; j < end; ++j) {
      const double at = (j - center + 0.5) / stretch;
      const double weight = filter == Interpolation::kBicubic ? bicubic(at) : bilinear(at);
      row[static_cast<std::size_t>(j - begin)] = weight;
      sum += weight;
    }
    first[static_cast<std::size_t>(i)] = begin;
    float* out = weights.data() + static_cast<std::ptrdiff_t>(i) * taps;
    for (int j = 0; j < end - begin; ++j) out[j] = static_cast<float>(row[static_cast<std::size_t>(j)] / sum);
  }
  return taps;
}

// 8-bit pixels as floats: grey as it is, RGB in steps of four.
int lanes_of(int channels) { return channels == 1 ? 1 : 4; }

// One row, pixels `stride` floats apart.
void widen(const std::uint8_t* in, std::ptrdiff_t pixels, int channels, std::ptrdiff_t stride, float* out) {
  if (channels == 1) {
    for (std::ptrdiff_t i = 0; i < pixels; ++i) out[i * stride] = in[i];
    return;
  }
  for (std::ptrdiff_t i = 0; i < pixels; ++i, in += 3, out += stride) {
    for (int c = 0; c < 3; ++c) out[c] = in[c];
    out[3] = 0.0f;
  }
}

void narrow(const float* in, std::ptrdiff_t pixels, int channels, std::uint8_t* out) {
  const int lanes = lanes_of(channels);
  for (std::ptrdiff_t i = 0; i < pixels; ++i, in += lanes, out += channels)
    for (int c = 0; c < channels; ++c) out[c] = static_cast<std::uint8_t>(static_cast<std::int32_t>(in[c]));
}

// Four floats in a register of any x86-64 or ARM64: g++ leaves the plain loops scalar. Sixteen sums at once, because
// one vector waits for itself and four keep the adders busy.
using Four = float __attribute__((vector_size(16)));
constexpr int kWide = 16;

Four load(const float* from) {
  Four value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

Four rounded(Four value) {
  value = value < 0.0f ? Four{} : value;
  value = value > 255.0f ? Four{} + 255.0f : value;
  using Whole = std::int32_t __attribute__((vector_size(16)));
  return __builtin_convertvector(__builtin_convertvector(value + 0.5f, Whole), Four);
}

// kWide columns from `in`: the sum of `count` rows, `stride` floats apart, by weight, rounded.
void blend_wide(const float* in, std::ptrdiff_t stride, int count, const float* weights, float* out) {
  Four a{}, b{}, c{}, d{};
  for (int j = 0; j < count; ++j, in += stride) {
    const float weight = weights[j];
    a += load(in) * weight;
    b += load(in + 4) * weight;
    c += load(in + 8) * weight;
    d += load(in + 12) * weight;
  }
  const Four sums[4] = {rounded(a), rounded(b), rounded(c), rounded(d)};
  std::memcpy(out, sums, sizeof(sums));
}

// Weights of the values at -1, 0, 1, 2 for a place t in [0, 1). Cubic convolution with a = -1, PIL's choice for
// transforms; linear: the middle two.
void place_weights(bool cubic, double t, float* weights) {
  if (!cubic) {
    weights[0] = static_cast<float>(1.0 - t);
    weights[1] = static_cast<float>(t);
    return;
  }
  weights[0] = static_cast<float>(t * (-1.0 + t * (2.0 - t)));
  weights[1] = static_cast<float>(1.0 + t * t * (t - 2.0));
  weights[2] = static_cast<float>(t * (1.0 + t * (1.0 - t)));
  weights[3] = static_cast<float>(t * t * (t - 1.0));
}

template <int kLanes, int kTaps>
void transform_rows(const Image& in, const float* pixels, const Affine& map, const std::uint8_t* fill, Image& out) {
  constexpr int kBefore = kTaps == 4 ? 1 : 0;
  for (int y = 0; y < in.height; ++y)
    for (int x = 0; x < in.width; ++x) {
      std::uint8_t* pixel = out.row(y) + static_cast<std::ptrdiff_t>(x) * in.channels;
      const double at_x = map.a * (x + 0.5) + map.b * (y + 0.5) + map.c;
      const double at_y = map.d * (x + 0.5) + map.e * (y + 0.5) + map.f;
      if (!(at_x >= 0.0 && at_x < in.width && at_y >= 0.0 && at_y < in.height)) {
        std::copy(fill, fill + in.channels, pixel);
        continue;
      }
      const double left = std::floor(at_x - 0.5), top = std::floor(at_y - 0.5);
      float across[kTaps], down[kTaps];
      place_weights(kTaps == 4, at_x - 0.5 - left, across);
      place_weights(kTaps == 4, at_y - 0.5 - top, down);
      std::ptrdiff_t columns[kTaps];
      for (int i = 0; i < kTaps; ++i)
        columns[i] = kLanes * std::clamp(static_cast<int>(left) + i - kBefore, 0, in.width - 1);
      Four sum{};
      for (int j = 0; j < kTaps; ++j) {
        const float* row = pixels + static_cast<std::ptrdiff_t>(kLanes) * in.width *
                                        std::clamp(static_cast<int>(top) + j - kBefore, 0, in.height - 1);
        Four line{};
        for (int i = 0; i < kTaps; ++i)
          line += across[i] * (kLanes == 4 ? load(row + columns[i]) : Four{row[columns[i]]});
        sum += down[j] * line;
      }
      for (int c = 0; c < in.channels; ++c) {
        // Cut to whole numbers as PIL does; a hair more, because a whole move must not lose a step to rounding.
        const float value = sum[c] + 1e-3f;
        pixel[c] = static_cast<std::uint8_t>(value <= 0.0f ? 0.0f : value >= 255.0f ? 255.0f : value);
      }
    }
}

}  // namespace

void resize_image(const Image& in, const Box& box, int height, int width, Interpolation filter, Image& out,
                  ResampleScratch& scratch) {
  const int channels = in.channels, lanes = lanes_of(channels), together = kWide / lanes;
  const int taps_x = make_weights(box.width, width, filter, scratch.first_x, scratch.weights_x);
  const int taps_y = make_weights(box.height, height, filter, scratch.first_y, scratch.weights_y);
  const std::ptrdiff_t row_size = (static_cast<std::ptrdiff_t>(width) * lanes + kWide - 1) / kWide * kWide;
  scratch.line.assign(static_cast<std::size_t>(box.width) * kWide, 0.0f);
  scratch.sums.resize(static_cast<std::size_t>(std::max<std::ptrdiff_t>(row_size, std::ptrdiff_t{width} * kWide)));
  scratch.rows.resize(static_cast<std::size_t>(box.height) * static_cast<std::size_t>(row_size));
  for (int y = 0; y < box.height; y += together) {
    const int count = std::min(together, box.height - y);
    for (int r = 0; r < count; ++r)
      widen(in.row(box.top + y + r) + static_cast<std::ptrdiff_t>(box.left) * channels, box.width, channels, kWide,
            scratch.line.data() + r * lanes);
    for (int x = 0; x < width; ++x) {  // rows side by side: kWide floats for each column
      const int first = scratch.first_x[static_cast<std::size_t>(x)];
      blend_wide(scratch.line.data() + static_cast<std::ptrdiff_t>(first) * kWide, kWide,
                 std::min(taps_x, box.width - first),
                 scratch.weights_x.data() + static_cast<std::ptrdiff_t>(x) * taps_x,
                 scratch.sums.data() + static_cast<std::ptrdiff_t>(x) * kWide);
    }
    for (int r = 0; r < count; ++r) {
      float* row = scratch.rows.data() + (y + r) * row_size;
      const float* sums = scratch.sums.data() + r * lanes;
      for (int x = 0; x < width; ++x, sums += kWide)
        for (int c = 0; c < lanes; ++c) row[x * lanes + c] = sums[c];
    }
  }
  out.resize(height, width, channels);
  for (int y = 0; y < height; ++y) {
    const int first = scratch.first_y[static_cast<std::size_t>(y)];
    for (std::ptrdiff_t i = 0; i < row_size; i += kWide)
      blend_wide(scratch.rows.data() + first * row_size + i, row_size, std::min(taps_y, box.height - first),
                 scratch.weights_y.data() + static_cast<std::ptrdiff_t>(y) * taps_y, scratch.sums.data() + i);
    narrow(scratch.sums.data(), width, channels, out.row(y));
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

void transform_image(const Image& in, const Affine& map, Interpolation filter, const std::uint8_t* fill, Image& out,
                     ResampleScratch& scratch) {
  out.resize(in.height, in.width, in.channels);
  const std::ptrdiff_t count = static_cast<std::ptrdiff_t>(in.height) * in.width;
  scratch.rows.resize(static_cast<std::size_t>(count * lanes_of(in.channels)));
  widen(in.pixels.data(), count, in.channels, lanes_of(in.channels), scratch.rows.data());
  const bool cubic = filter == Interpolation::kBicubic;
  const auto transform = in.channels == 1 ? (cubic ? transform_rows<1, 4> : transform_rows<1, 2>)
                                          : (cubic ? transform_rows<4, 4> : transform_rows<4, 2>);
  transform(in, scratch.rows.data(), map, fill, out);
}

}  // namespace mhla
