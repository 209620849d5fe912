// Sizes and positions of 8-bit images. Resizing is PIL's: a filter as wide as the shrink factor, first along rows, then
// along columns, each pass rounded to 8 bits. Sums are of floats, four at a time: a pixel as red, green, blue and
// nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "mhla/data/augment.h"
#include "mhla/io/codecs/image.h"

namespace mhla {

struct Box {
  int top = 0, left = 0, height = 0, width = 0;
};

// Memory that is kept from image to image, one per thread.
struct ResampleScratch {
  std::vector<float> line, rows, sums;
  std::vector<float> weights_x, weights_y;
  std::vector<int> first_x, first_y;
};

struct ItemScratch {
  Image image, other;  // the image being worked on, and where its next version is made
  ResampleScratch resample;
};

// The part `box` of `in`, as if it were cut out first, brought to height x width. kRandom is no filter.
void resize_image(const Image& in, const Box& box, int height, int width, Interpolation filter, Image& out,
                  ResampleScratch& scratch);

void crop_image(const Image& in, const Box& box, Image& out);
// In the middle of zeros; the odd row or column of zeros comes last.
void pad_image(const Image& in, int height, int width, Image& out);
void flip_image(Image& image);                                       // left for right
void shift_image(const Image& in, int down, int right, Image& out);  // zeros come in

// out(x, y) = in(a x + b y + c, d x + e y + f), coordinates of pixel centres; `fill` where that lies outside.
struct Affine {
  double a = 1, b = 0, c = 0, d = 0, e = 1, f = 0;
};
Affine rotation(double degrees, int height, int width);  // counter-clockwise about the middle
void transform_image(const Image& in, const Affine& map, Interpolation filter, const std::uint8_t* fill, Image& out,
                     ResampleScratch& scratch);

}  // namespace mhla
