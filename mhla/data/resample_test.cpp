// Resizing against the filter written out in double, the rest against what it says.
#include "mhla/data/resample.h"

#include <cmath>

#include "mhla/data/data_fixture.h"

namespace mhla {
namespace {

double weight(double x, bool cubic) {
  x = std::abs(x);
  if (!cubic) return x < 1.0 ? 1.0 - x : 0.0;
  if (x < 1.0) return 1.5 * x * x * x - 2.5 * x * x + 1.0;
  return x < 2.0 ? -0.5 * x * x * x + 2.5 * x * x - 4.0 * x + 2.0 : 0.0;
}

// Both passes at once, without rounding in between.
Image plain_resize(const Image& in, const Box& box, int height, int width, bool cubic) {
  Image out;
  out.resize(height, width, in.channels);
  const double step_y = static_cast<double>(box.height) / height, step_x = static_cast<double>(box.width) / width;
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      for (int c = 0; c < in.channels; ++c) {
        double sum = 0.0, weights = 0.0;
        for (int i = 0; i < box.height; ++i)
          for (int j = 0; j < box.width; ++j) {
            const double w = weight((i + 0.5 - (y + 0.5) * step_y) / std::max(1.0, step_y), cubic) *
                             weight((j + 0.5 - (x + 0.5) * step_x) / std::max(1.0, step_x), cubic);
            sum += w * in.row(box.top + i)[(box.left + j) * in.channels + c];
            weights += w;
          }
        out.row(y)[x * in.channels + c] = static_cast<std::uint8_t>(std::clamp(sum / weights + 0.5, 0.0, 255.0));
      }
  return out;
}

TEST(Resample, ResizeIsTheFilter) {
  ResampleScratch scratch;
  Image out;
  for (const int channels : {1, 3})
    for (const bool cubic : {false, true})
      for (const auto& [height, width] : {std::pair{1, 1}, {5, 9}, {13, 21}, {17, 30}, {40, 8}}) {
        const Image in = smooth_image(17, 23, channels);
        const Image noise = noise_image(17, 23, channels, 3);
        const auto filter = cubic ? Interpolation::kBicubic : Interpolation::kBilinear;
        for (const Box& box : {Box{0, 0, 17, 23}, Box{3, 5, 11, 7}, Box{16, 22, 1, 1}}) {
          resize_image(in, box, height, width, filter, out, scratch);
          EXPECT_LE(worst_difference(out, plain_resize(in, box, height, width, cubic)), 1) << height << " x " << width;
          resize_image(noise, box, height, width, filter, out, scratch);
          // Clipping between the passes costs a bicubic overshoot of noise a little more.
          EXPECT_LE(worst_difference(out, plain_resize(noise, box, height, width, cubic)), cubic ? 12 : 1);
        }
      }
}

TEST(Resample, SameSizeIsTheSameImage) {
  const Image in = noise_image(9, 14, 3, 1);
  ResampleScratch scratch;
  Image out;
  for (const auto filter : {Interpolation::kBilinear, Interpolation::kBicubic}) {
    resize_image(in, {0, 0, 9, 14}, 9, 14, filter, out, scratch);
    EXPECT_EQ(out, in);
  }
}

TEST(Resample, AFlatImageStaysFlat) {
  Image in;
  in.resize(31, 17, 3);
  std::fill(in.pixels.begin(), in.pixels.end(), std::uint8_t{201});
  ResampleScratch scratch;
  Image out;
  for (const int size : {1, 7, 16, 64}) {
    resize_image(in, {0, 0, 31, 17}, size, size + 1, Interpolation::kBicubic, out, scratch);
    for (const std::uint8_t pixel : out.pixels) ASSERT_EQ(pixel, 201);
  }
}

TEST(Resample, CropPadFlipShift) {
  const Image in{2, 3, 1, {1, 2, 3, 4, 5, 6}};
  Image out;
  crop_image(in, {1, 1, 1, 2}, out);
  EXPECT_EQ(out, (Image{1, 2, 1, {5, 6}}));
  pad_image(in, 3, 6, out);  // no row above and one below, one column before and two behind
  EXPECT_EQ(out, (Image{3, 6, 1, {0, 1, 2, 3, 0, 0, 0, 4, 5, 6, 0, 0, 0, 0, 0, 0, 0, 0}}));
  Image flipped{1, 3, 3, {1, 2, 3, 4, 5, 6, 7, 8, 9}};
  flip_image(flipped);
  EXPECT_EQ(flipped, (Image{1, 3, 3, {7, 8, 9, 4, 5, 6, 1, 2, 3}}));
  shift_image(in, 1, 1, out);
  EXPECT_EQ(out, (Image{2, 3, 1, {0, 0, 0, 0, 1, 2}}));
  shift_image(in, -1, -2, out);
  EXPECT_EQ(out, (Image{2, 3, 1, {6, 0, 0, 0, 0, 0}}));
  for (const auto& [down, right] : {std::pair{2, 0}, {0, 3}, {-5, 9}}) {
    shift_image(in, down, right, out);
    EXPECT_EQ(out, (Image{2, 3, 1, {0, 0, 0, 0, 0, 0}}));
  }
}

TEST(Resample, WholeMovesAreExact) {
  const Image in = noise_image(8, 8, 3, 2);
  const std::uint8_t fill[3] = {9, 8, 7};
  ResampleScratch scratch;
  for (const auto filter : {Interpolation::kBilinear, Interpolation::kBicubic}) {
    Image out;
    transform_image(in, {}, filter, fill, out, scratch);
    EXPECT_EQ(out, in);
    transform_image(in, {.c = 2.0, .f = -3.0}, filter, fill, out, scratch);  // out(x, y) = in(x + 2, y - 3)
    for (int y = 0; y < 8; ++y)
      for (int x = 0; x < 8; ++x)
        for (int c = 0; c < 3; ++c)
          EXPECT_EQ(out.row(y)[3 * x + c], x + 2 < 8 && y >= 3 ? in.row(y - 3)[3 * (x + 2) + c] : fill[c]);
    transform_image(in, rotation(90.0, 8, 8), filter, fill, out,
                    scratch);  // counter-clockwise: the right column on top
    for (int y = 0; y < 8; ++y)
      for (int x = 0; x < 8; ++x) EXPECT_NEAR(out.row(y)[3 * x], in.row(x)[3 * (7 - y)], 1) << y << ", " << x;
  }
}

TEST(Resample, BetweenPixels) {
  const Image in{1, 4, 1, {10, 20, 60, 80}};
  const std::uint8_t fill = 255;
  ResampleScratch scratch;
  Image out;
  transform_image(in, {.c = 0.5}, Interpolation::kBilinear, &fill, out, scratch);
  EXPECT_EQ(out, (Image{1, 4, 1, {15, 40, 70, 255}}));  // in(4.0) lies outside
  transform_image(in, {.c = 0.5}, Interpolation::kBicubic, &fill, out, scratch);
  // a = -1 at one half: (-1, 5, 5, -1) / 8, the border repeated
  EXPECT_EQ(out.pixels[1], (-10 + 5 * 20 + 5 * 60 - 80) / 8);
  EXPECT_EQ(out.pixels[0], (-10 + 5 * 10 + 5 * 20 - 60) / 8);
}

}  // namespace
}  // namespace mhla
